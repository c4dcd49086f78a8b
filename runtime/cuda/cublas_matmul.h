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

  // Returns what launches the product on the plan's stream. Returns nothing in a build without cuBLAS, and
  // for what the library does not take: integers, empty sums, and matrices whose rows and columns both have
  // gaps. Sums are in f32 and rounded once; f32 never becomes TF32. The kernel, the memory and this object
  // must outlive the result. Throws InvalidInput if there is no room for the workspace.
  PreparedKernel prepare(const MatMul& kernel, StreamId stream, const CudaMemory& memory);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
