// Four rows of four floats, transposed in registers.
#pragma once

#include <cstdint>

namespace cp {

// Four floats, which the processors of all architectures move at once.
using Four __attribute__((vector_size(16))) = float;
using UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias)) = float;

// out[c * out_row + r] = in[r * in_row + c], for r and c below 4.
inline void transpose_four(const float* in, std::int64_t in_row, float* out, std::int64_t out_row) {
  Four rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const UnalignedFour*>(in + i * in_row);
  const Four low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Four low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Four high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Four high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const Four columns[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                           __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                           __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                           __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) *reinterpret_cast<UnalignedFour*>(out + i * out_row) = columns[i];
}

}  // namespace cp
