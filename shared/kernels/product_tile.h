// A tile of a matrix product: sums[r][c] += a[k][r] * b[k][c], for all k in ascending order.
//
// Each sum is one accumulator. In f32 each product is fused with its sum: fma(a, b, sum), rounded once. IEEE
// 754 defines that result exactly, so that it is the same bit for bit on every host, whatever vectors it has:
// a vector only works on several columns at once. Hosts whose processor has no such instruction (x86-64
// before 2013) compute it by std::fma, with the same bits, many times slower.
#pragma once

#include <cstdint>

namespace cp {

// Operands are packed: a [depth][rows], of which the first of a tile that has fewer rows are read, and
// b [depth][columns] whole. Sums are [rows][columns], dense, and begin with zeros if `begins`. Nothing is
// allocated.
template <class Value>
struct ProductTile {
  std::int64_t rows = 0, columns = 0;  // at most; both are above 0
  void (*multiply)(Value* sums, const Value* a, const Value* b, std::int64_t rows, std::int64_t depth,
                   bool begins) = nullptr;
};

// For the widest vectors that this machine has.
const ProductTile<float>& product_tile();
// The same for its others too, the widest first: for tests.
int product_tile_count();
const ProductTile<float>& product_tile(int which);

}  // namespace cp
