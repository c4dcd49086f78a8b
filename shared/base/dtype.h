// Element types of tensors and the reductions over them, with their text names.
#pragma once

#include <cstdint>
#include <string_view>

namespace cp {

enum class DType : std::uint8_t { f32, f16, bf16, i32, i64 };

constexpr std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) { return dtype != DType::i32 && dtype != DType::i64; }

// How the contributions of several ranks become one value. `avg` is the sum divided by the size of the group,
// for floating types only.
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product };

std::string_view name(DType dtype);
std::string_view name(ReduceOp op);

// Both throw InvalidInput that lists the known names. A dtype may also have PyTorch's name: torch.bfloat16,
// float32, half.
DType parse_dtype(std::string_view text);
ReduceOp parse_reduce_op(std::string_view text);

}  // namespace cp
