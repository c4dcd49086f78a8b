// The code of product_tile.h, for the lanes of the file that includes it. A tile's sums stay in registers
// while k runs through the depth.
#pragma once

#include <cstdint>

#include "shared/kernels/product_tile.h"

namespace cp {
namespace {

// `Lanes` is a vector of kCount values, and what is done with it:
//   Value, Vector, kCount
//   Vector load(const Value*), void store(Value*, Vector), Vector all(Value)
//   Vector add_product(Vector sum, Vector a, Vector b)
template <class Lanes, int kRows, int kVectors>
struct TileProducts {
  using Value = typename Lanes::Value;
  using Vector = typename Lanes::Vector;
  static constexpr std::int64_t kColumns = std::int64_t{Lanes::kCount} * kVectors;

  template <int kBlock>
  static void block(Value* sums, const Value* a, const Value* b, std::int64_t depth, bool begins) {
    Vector sum[kBlock][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kBlock; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = begins ? Lanes::all(0) : Lanes::load(sums + r * kColumns + v * Lanes::kCount);
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      Vector of_b[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) of_b[v] = Lanes::load(b + k * kColumns + v * Lanes::kCount);
#pragma GCC unroll 8
      for (int r = 0; r < kBlock; ++r) {
        const Vector factor = Lanes::all(a[k * kRows + r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Lanes::add_product(sum[r][v], factor, of_b[v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kBlock; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) Lanes::store(sums + r * kColumns + v * Lanes::kCount, sum[r][v]);
    }
  }

  template <int kBlock>
  static void multiply(Value* sums, const Value* a, const Value* b, std::int64_t rows, std::int64_t depth,
                       bool begins) {
    if (rows == kBlock) return block<kBlock>(sums, a, b, depth, begins);
    if constexpr (kBlock > 1) multiply<kBlock - 1>(sums, a, b, rows, depth, begins);
  }

  static constexpr ProductTile<Value> tile() { return {kRows, kColumns, multiply<kRows>}; }
};

}  // namespace
}  // namespace cp
