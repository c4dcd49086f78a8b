// HostKernelsOnStreams: those kernels of a prepared plan that the host computes (KernelPlace::host), each in
// its turn on a stream of the GPU, such as the optimizer of states that lie on the host. CUDA calls them on a
// thread of its own; there is one for each GPU, so that they do not run beside one another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/plan/plan.h"
#include "shared/plan/rebindable_memory.h"

namespace cp::runtime {

class HostKernelsOnStreams {
 public:
  // The plan and the memory must outlive this, and this everything that was launched.
  HostKernelsOnStreams(const Plan& plan, const CudaMemory& memory);
  ~HostKernelsOnStreams();
  HostKernelsOnStreams(const HostKernelsOnStreams&) = delete;
  HostKernelsOnStreams& operator=(const HostKernelsOnStreams&) = delete;

  // Of a kernel of the plan, which must outlive this, that runs in `iterations` iterations. A launch
  // allocates when buffers were bound to other addresses while launches before it wait, and for the first
  // launch after that; else not.
  PreparedKernel prepare(const Kernel& kernel, std::int64_t iterations);

 private:
  struct Call;
  struct Calls;
  void launch(Calls& calls, std::int64_t iteration, cudaStream_t stream);

  const CudaMemory& memory_;
  Bindings bindings_;  // of the buffers of the host
  RebindableMemory on_host_;
  std::vector<std::unique_ptr<Calls>> calls_;
};

}  // namespace cp::runtime
