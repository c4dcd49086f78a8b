// FusedKernels: attention steps whose engine is AttentionEngine::fused, by cuDNN's graphs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_memory.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// One for each rank and GPU; graphs are cached over plans, by shape and strides.
class FusedKernels {
 public:
  FusedKernels();  // on the current device; the library is loaded by the first fused step
  ~FusedKernels();
  FusedKernels(const FusedKernels&) = delete;
  FusedKernels& operator=(const FusedKernels&) = delete;

  // Builds the graph of each fused step of the plan and uploads what its calls need (offsets of packed documents). Forgets the steps
  // of the plan before; keeps the graphs. Blocks. Throws InvalidInput, naming the step and its shape, where the library refuses what
  // the plan asks for, or needs more workspace than the step declares.
  void prepare(const Plan& plan);

  // Steps of the prepared plan. Enqueue only.
  void launch(const AttentionForward& step, const CudaMemory& memory, std::int64_t iteration,
              cudaStream_t stream);
  void launch(const AttentionBackward& step, const CudaMemory& memory, std::int64_t iteration,
              cudaStream_t stream);

  // "cudnn": "9.19.0"; of the library that runs, not the one that was compiled with.
  static std::map<std::string, std::string> library_versions();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
