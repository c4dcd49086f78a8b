// The inner loops that take nearly all of the time of attention and of matrix products: products of tiles,
// and the exponentials between them. They are compiled once for each instruction set, and chosen when the
// program runs.
//
// A tile is [keys][width] floats, row-major: a key for each row, a query for each column, so that one vector
// instruction works on several queries and no sum runs across a vector. All sums run in ascending order of
// their terms, weights in parts of 16; instruction sets differ in rounding alone (the wider ones fuse a
// product and a sum).
//
// The error of a long sum does not grow with its length: its terms are added up in chains of bounded length,
// a few chains are added up to the sum of a tile, and tiles are added to a pair of floats, `sum` and `low`,
// whose additions lose nothing (Knuth's TwoSum; Ogita, Rump and Oishi 2005, "Accurate sum and dot product").
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cp {

// Rows and columns of a product c[m][n] = (or +=) sum over k of a(m, k) * b[k][n]. Distances count floats.
// The sum is made of chains of terms, each from zero, which are added up: what c holds never meets a single
// term.
struct TileProduct {
  const float* a = nullptr;
  std::int64_t a_panel = 0;  // multiply_panels only: from one panel of `panel_rows` rows of a to the next
  const float* b = nullptr;
  std::int64_t b_row = 0;
  float* c = nullptr;
  std::int64_t c_row = 0;
  std::int64_t rows = 0;     // m: a multiple of panel_rows
  std::int64_t depth = 0;    // k
  std::int64_t vectors = 0;  // n, in vectors
  bool accumulate = false;
  std::int64_t chain = 64;  // terms of a chain; the last one has below 3/2 of that
};

// Some rows and neighbouring vectors of a tile.
struct TileBlock {
  float* tile = nullptr;                // at the first row and column 0
  const std::uint64_t* mask = nullptr;  // for each row, a bit for each column that counts; null when all do
  std::int64_t rows = 0, first_vector = 0, vectors = 0;
};

struct TileKernels {
  std::string_view name;
  std::int64_t lanes = 0;                                 // floats in a vector
  std::int64_t vectors = 0;                               // in a row of a tile
  std::int64_t panel_rows = 0;                            // rows of a that are read together
  std::int64_t width() const { return lanes * vectors; }  // below 64: a mask has a bit for each

  // a lies in panels: a(m, k) = a[m / panel_rows * a_panel + k * panel_rows + m % panel_rows].
  void (*multiply_panels)(TileProduct) = nullptr;
  // a is a tile: a(m, k) = a[m * width + k].
  void (*multiply_tile)(TileProduct) = nullptr;

  // As multiply_panels, of bf16 values: in the bits of each float of a and b lie two of them, the one for the
  // lower k in the lower half, and k counts pairs. Products are exact and are added in f32; what is below
  // f32's normal numbers, inputs too, counts as 0. Null where the processor has no such products.
  void (*multiply_pairs)(TileProduct) = nullptr;

  // What has a value for each column starts at column 0.
  // Scores: tile = tile * scale, -inf where masked; greatest = max(greatest, the column's).
  void (*scale_scores)(TileBlock, float scale, float* greatest) = nullptr;
  // Weights: tile = exp(tile - base); sum + sum_low += the column's. A base of -inf counts as 0.
  void (*exponentials)(TileBlock, const float* base, float* sum, float* sum_low) = nullptr;
  // scores = p = exp(scores * scale - lse), products = p * (products - delta) * scale; both 0 where masked.
  void (*gradients)(TileBlock scores, float* products, float scale, const float* lse,
                    const float* delta) = nullptr;
  // tile[row][column] *= factors[column] + factors_low[column], or of factors alone where factors_low is
  // null.
  void (*scale_columns)(TileBlock, const float* factors, const float* factors_low) = nullptr;
  // sums + low += terms, without an error but in the additions of low: for `count` floats, a multiple of
  // lanes.
  void (*add_to)(float* sums, float* low, const float* terms, std::int64_t count) = nullptr;
  // sums = sums + low, rounded; a sum that overflowed, whose low is a NaN, stays what it is.
  void (*round_sums)(float* sums, const float* low, std::int64_t count) = nullptr;
  // out = exp(in), within 2 ulp; 0 below -86.9, and infinite above 88.73.
  void (*exponential)(const float* in, float* out, std::int64_t count) = nullptr;
};

// Those that this machine can run, the fastest first. The last one runs on every machine.
std::span<const TileKernels* const> tile_kernels();

}  // namespace cp
