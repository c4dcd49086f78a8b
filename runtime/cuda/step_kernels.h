// StepKernels has the kernels of one prepared plan on the GPU. What a launch needs beside its operands
// (tables of mask slices, the graphs and offsets of the fused library) is made and uploaded once, by the
// constructor; graphs are built on several threads. A launch only enqueues.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cublas_matmul.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/fused_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// What NVIDIA's libraries keep from plan to plan: handles, graphs, workspaces. There is one for each rank and
// GPU.
struct LibraryKernels {
  FusedKernels fused;
  CublasMatMul products;
};

class StepKernels {
 public:
  // `streams` are those of the device, by the plan's StreamId. The plan, the memory and the libraries must
  // outlive this object. The constructor blocks. Throws InvalidInput that names the step, if the device lacks
  // a kernel.
  StepKernels(const Plan& plan, std::span<const StreamId> streams, const CudaMemory& memory,
              LibraryKernels& libraries);
  ~StepKernels();
  StepKernels(const StepKernels&) = delete;
  StepKernels& operator=(const StepKernels&) = delete;

  // Enqueues a kernel step of the plan. It never synchronizes, allocates or copies from the host. But CUDA
  // loads a kernel of cuBLAS or cuDNN when it is first launched, and may wait for that.
  void launch(const StepRef& step, std::int64_t iteration, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
