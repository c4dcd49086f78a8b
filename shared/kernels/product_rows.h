// The inner loop of matrix products in f32: sums[r][c] += a[r][k] * b[k][c], for all k in ascending order.
//
// Each sum is one accumulator whose products are rounded before they are added, so that results are the same
// on every host, whatever vectors it has: a vector only works on several columns at once. That costs half of
// what fused products and sums would reach.
#pragma once

#include <cstdint>

namespace cp {

// Dense, row-major: sums [rows][columns], a [rows][depth], b [depth][columns].
using MultiplyRows = void (*)(float* sums, const float* a, const float* b, std::int64_t rows,
                              std::int64_t columns, std::int64_t depth);
// For the widest vectors that this machine has.
MultiplyRows multiply_rows();
// The same for its others too, the widest first: for tests.
int multiply_rows_count();
MultiplyRows multiply_rows(int which);

}  // namespace cp
