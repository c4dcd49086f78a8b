#include "tests/emulated_gpu/nccl_reduce.h"

#include <array>
#include <optional>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "tests/emulated_gpu/nccl_transfer.h"

namespace cp::emulated {
namespace {

std::optional<DType> dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return DType::f32;
    case ncclFloat16:
      return DType::f16;
    case ncclBfloat16:
      return DType::bf16;
    case ncclInt32:
      return DType::i32;
    case ncclInt64:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> reduction_of(ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
      return ReduceOp::sum;
    case ncclAvg:
      return ReduceOp::avg;
    case ncclMin:
      return ReduceOp::min;
    case ncclMax:
      return ReduceOp::max;
    case ncclProd:
      return ReduceOp::product;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::size_t size_bytes(ncclDataType_t type) {
  static constexpr std::array<std::size_t, 12> kSizes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  static_assert(ncclNumTypes <= kSizes.size());  // headers before 2.24 lack the last two
  return kSizes.at(static_cast<std::size_t>(type));
}

bool can_reduce(ncclRedOp_t op, ncclDataType_t type) {
  const auto dtype = dtype_of(type);
  const auto reduction = reduction_of(op);
  return dtype && reduction && (*reduction != ReduceOp::avg || is_floating(*dtype));
}

void reduce_elements(ncclRedOp_t op, ncclDataType_t type, const std::vector<const std::byte*>& inputs,
                     std::byte* out, std::size_t count) {
  CP_INVARIANT(can_reduce(op, type), "op ", static_cast<int>(op), ", type ", static_cast<int>(type));
  reduce(*reduction_of(op), *dtype_of(type), inputs, out, static_cast<std::int64_t>(count));
}

}  // namespace cp::emulated
