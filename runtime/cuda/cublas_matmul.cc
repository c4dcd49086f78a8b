#include "runtime/cuda/cublas_matmul.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "runtime/cuda/cublas_library.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/errors.h"

namespace cp::runtime {
namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string text = str(call, ": ", cublas().status_name(status), ", ", cublas().status_text(status));
  if (status == CUBLAS_STATUS_EXECUTION_FAILED)
    throw PeerLost(str("this process can no longer use the GPU: ", text));
  throw InvalidInput(text);
}
#define CP_CUBLAS(call) check_cublas(cublas().call, "cuBLAS, " #call)

std::optional<cudaDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::i32:
    case DType::i64:
      break;
  }
  return std::nullopt;
}

// How cuBLAS takes a matrix. It stores matrices by columns, so for it a row-major matrix is its own
// transpose: CUBLAS_OP_N takes it as it lies, CUBLAS_OP_T transposes it again. Therefore prepare() asks for b
// * a, with both transposed, which is out transposed.
struct Operand {
  cublasOperation_t operation = CUBLAS_OP_N;
  std::int64_t leading = 0;
};
std::optional<Operand> operand(const View& matrix) {
  const std::int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  const std::int64_t row_step = rows == 1 ? columns : matrix.strides[0],
                     column_step = columns == 1 ? rows : matrix.strides[1];
  if ((columns == 1 || column_step == 1) && row_step >= columns) return Operand{CUBLAS_OP_N, row_step};
  if ((rows == 1 || row_step == 1) && column_step >= rows) return Operand{CUBLAS_OP_T, column_step};
  return std::nullopt;
}

}  // namespace

struct CublasMatMul::Impl {
  cublasHandle_t handle = nullptr;
  std::map<StreamId, GpuBytes> workspaces;

  ~Impl() {
    if (handle != nullptr) cublas().destroy(handle);
  }
  void start() {
    if (handle != nullptr) return;
    CP_CUBLAS(create(&handle));
    CP_CUBLAS(set_math_mode(
        handle,
        static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  }
  void* workspace_of(StreamId stream) {
    return workspaces.try_emplace(stream, std::size_t{kWorkspaceBytes}).first->second.data();
  }
};

CublasMatMul::CublasMatMul() : impl_(std::make_unique<Impl>()) {}
CublasMatMul::~CublasMatMul() = default;

PreparedKernel CublasMatMul::prepare(const MatMul& kernel, StreamId stream_id, const CudaMemory& memory) {
  const auto in_type = type_of(memory.dtype(kernel.a)), out_type = type_of(memory.dtype(kernel.out));
  if (!in_type || !out_type || kernel.a.numel() == 0 || kernel.b.numel() == 0) return {};
  const auto a = operand(kernel.a), b = operand(kernel.b), out = operand(kernel.out);
  if (!a || !b || !out || out->operation != CUBLAS_OP_N) return {};
  impl_->start();
  const auto compute = *in_type == CUDA_R_32F ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  return [handle = impl_->handle, workspace = impl_->workspace_of(stream_id), &kernel, &memory, a = *a,
          b = *b, out = *out, in_type = *in_type, out_type = *out_type,
          compute](std::int64_t iteration, cudaStream_t stream) {
    const float one = 1, before = kernel.accumulate ? 1.0f : 0.0f;
    CP_CUBLAS(set_stream(handle, stream));
    // Again for each call, because cublasSetStream() went back to the default workspace.
    CP_CUBLAS(set_workspace(handle, workspace, kWorkspaceBytes));
    CP_CUBLAS(gemm_ex_64(handle, b.operation, a.operation, kernel.out.shape[1], kernel.out.shape[0],
                         kernel.a.shape[1], &one, memory.at(kernel.b, iteration), in_type, b.leading,
                         memory.at(kernel.a, iteration), in_type, a.leading, &before,
                         memory.at(kernel.out, iteration), out_type, out.leading, compute,
                         CUBLAS_GEMM_DEFAULT));
  };
}

}  // namespace cp::runtime
