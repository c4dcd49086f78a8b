// Matrix products by cuBLAS, without memory beside the operands'.
#pragma once

#include <memory>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/prepared_kernels.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

class CublasMatMul {
 public:
  CublasMatMul();  // on the current device; the library is started by the first product
  ~CublasMatMul();
  CublasMatMul(const CublasMatMul&) = delete;
  CublasMatMul& operator=(const CublasMatMul&) = delete;

  // Nothing for what the library does not take: integers, empty sums, matrices whose rows and columns both have gaps. Sums are in f32
  // and rounded once; f32 never becomes TF32. The result outlives this only unused.
  PreparedKernel prepare(const MatMul& kernel, const CudaMemory& memory);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
