// FusedKernels runs the attention steps whose engine is AttentionEngine::fused, by cuDNN's graphs.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// There is one for each rank and GPU. It keeps graphs for later plans, by shape and strides.
class FusedKernels {
 public:
  FusedKernels();  // for the current device; the first fused step loads the library
  ~FusedKernels();
  FusedKernels(const FusedKernels&) = delete;
  FusedKernels& operator=(const FusedKernels&) = delete;

  // Builds the step's graph, unless there is an equal one, and uploads what its calls need (the offsets of
  // packed documents). The function blocks. In a build without cuDNN it returns nothing. The step, the memory
  // and this object must outlive the kernel. Throws InvalidInput if the library refuses what the plan asks
  // for, or needs more workspace than the step declares.
  PreparedKernel prepare(const AttentionForward& step, const CudaMemory& memory);
  PreparedKernel prepare(const AttentionBackward& step, const CudaMemory& memory);

  // Returns {"cudnn": "9.19.0"}, the version of the library that runs, not of the one at compile time.
  static std::map<std::string, std::string> library_versions();

 private:
  template <class Op>
  PreparedKernel prepare_step(const Op& step, const CudaMemory& memory);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
