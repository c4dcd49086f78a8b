// CublasMatMul of a build without cuBLAS: it takes no product.
#include "runtime/cuda/cublas_matmul.h"

namespace cp::runtime {

struct CublasMatMul::Impl {};

CublasMatMul::CublasMatMul() = default;
CublasMatMul::~CublasMatMul() = default;

PreparedKernel CublasMatMul::prepare(const MatMul&, StreamId, const CudaMemory&) { return {}; }

}  // namespace cp::runtime
