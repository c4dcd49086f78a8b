// FusedKernels: attention steps whose engine is AttentionEngine::fused, by cuDNN's graphs.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// One for each rank and GPU; graphs are cached over plans, by shape and strides.
class FusedKernels {
 public:
  FusedKernels();  // on the current device; the library is loaded by the first fused step
  ~FusedKernels();
  FusedKernels(const FusedKernels&) = delete;
  FusedKernels& operator=(const FusedKernels&) = delete;

  // Builds the step's graph, where no step had an equal one, and uploads what its calls need (offsets of
  // packed documents). Blocks. Nothing in a build without cuDNN. Throws InvalidInput where the library
  // refuses what the plan asks for, or needs more workspace than the step declares. The step and the memory
  // outlive the kernel; so does this, while the kernel is used.
  PreparedKernel prepare(const AttentionForward& step, const CudaMemory& memory);
  PreparedKernel prepare(const AttentionBackward& step, const CudaMemory& memory);

  // "cudnn": "9.19.0"; of the library that runs, not the one that was compiled with.
  static std::map<std::string, std::string> library_versions();

 private:
  template <class Op>
  PreparedKernel prepare_step(const Op& step, const CudaMemory& memory);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
