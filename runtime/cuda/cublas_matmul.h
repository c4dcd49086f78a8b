// Matrix products by cuBLAS. We give each stream with products a workspace of its own, of kWorkspaceBytes,
// which is not memory of the plan. The reason is repeatability: cuBLAS does not promise equal bits for equal
// products when two streams share its default workspace.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

class CublasMatMul {
 public:
  // What cuBLAS itself takes on Hopper and Blackwell (cublasSetWorkspace in its guide).
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  CublasMatMul();  // on the current device; the library is started by the first product
  ~CublasMatMul();
  CublasMatMul(const CublasMatMul&) = delete;
  CublasMatMul& operator=(const CublasMatMul&) = delete;

  // For launches on the plan's stream. Nothing in a build without cuBLAS, and for what the library does not
  // take: integers, empty sums, matrices whose rows and columns both have gaps. Sums are in f32 and rounded
  // once; f32 never becomes TF32. The kernel and the memory outlive the result; so does this, while it is
  // used. Throws InvalidInput where the workspace does not fit.
  PreparedKernel prepare(const MatMul& kernel, StreamId stream, const CudaMemory& memory);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
