// StepKernels: the kernels of one prepared plan on the GPU. What a launch needs beside its operands (tables
// of mask slices, the fused library's graphs and offsets) is made and uploaded once, here; a launch only
// enqueues.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cublas_matmul.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/fused_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// What NVIDIA's libraries keep over plans: handles, graphs, workspaces. One for each rank and GPU.
struct LibraryKernels {
  FusedKernels fused;
  CublasMatMul products;
};

class StepKernels {
 public:
  // The plan, the memory and the libraries outlive this. Blocks. Throws InvalidInput for a kernel that the
  // device lacks, naming the step.
  StepKernels(const Plan& plan, const CudaMemory& memory, LibraryKernels& libraries);
  ~StepKernels();
  StepKernels(const StepKernels&) = delete;
  StepKernels& operator=(const StepKernels&) = delete;

  // `step` is a kernel step of the plan, by its id. Enqueues; never synchronizes, allocates or copies from
  // the host. But CUDA loads a kernel of cuBLAS's or cuDNN's when it is first launched, for which it may
  // wait.
  void launch(const StepRef& step, std::int64_t iteration, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
