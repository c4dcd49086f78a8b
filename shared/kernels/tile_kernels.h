// The inner loops that take nearly all of the time of attention and of matrix products: products of tiles,
// and the exponentials between them. They are compiled once for each instruction set; which one runs is
// chosen at run time.
//
// A tile is [keys][width] floats, row-major: a row for each key, a column for each query. So one vector
// instruction works on several queries, and no sum runs across a vector. All sums run in ascending order of
// their terms, weights in parts of 16. Instruction sets differ only in rounding (the wider ones fuse a
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

// A product c[m][n] = (or +=) sum over k of a(m, k) * b[k][n]. Distances count floats. The sum is made of
// chains of terms, each of which begins with zero; then the chains are added up. So what c holds never meets
// a single term.
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
  // Terms of a chain; the last one has less than 3/2 of that. Chosen: see kForwardChain.
  std::int64_t chain = 64;
};

// Some rows, and neighbouring vectors, of a tile.
struct TileBlock {
  float* tile = nullptr;                // at the first row and column 0
  const std::uint64_t* mask = nullptr;  // for each row a bit for each column that counts; null if all do
  std::int64_t rows = 0, first_vector = 0, vectors = 0;
};

// Which weights of a tile dropout keeps, and what those are multiplied by (shared/kernels/philox.h).
struct TileDropout {
  const std::uint32_t* keys = nullptr;  // the number of each row's key among all
  // Of each column: its query's, and batch * heads + head.
  const std::uint32_t *queries = nullptr, *heads = nullptr;
  std::uint32_t layer = 0;
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;
  float factor = 1;
};

struct TileKernels {
  std::string_view name;
  std::int64_t lanes = 0;                                 // floats in a vector
  std::int64_t vectors = 0;                               // in a row of a tile
  std::int64_t panel_rows = 0;                            // rows of a that are read together
  std::int64_t width() const { return lanes * vectors; }  // below 64, since a mask has a bit for each

  // a lies in panels: a(m, k) = a[m / panel_rows * a_panel + k * panel_rows + m % panel_rows].
  void (*multiply_panels)(TileProduct) = nullptr;
  // a is a tile: a(m, k) = a[m * width + k].
  void (*multiply_tile)(TileProduct) = nullptr;

  // As multiply_panels, for bf16 values. The bits of each float of a and b hold two of them, the one for the
  // lower k in the lower half, and k counts pairs. Products are exact and are added in f32. What is below
  // f32's normal numbers, also in the inputs, counts as 0. Null if the processor has no such products.
  void (*multiply_pairs)(TileProduct) = nullptr;

  // Arrays with a value for each column start at column 0. Scores: tile = tile * scale, or -inf if masked;
  // greatest = max(greatest, the column's).
  void (*scale_scores)(TileBlock, float scale, float* greatest) = nullptr;
  // Weights: tile = exp(tile - base); sum + sum_low += the sum of the column. A base of -inf counts as 0.
  void (*exponentials)(TileBlock, const float* base, float* sum, float* sum_low) = nullptr;
  // scores = p = exp(scores * scale - lse), products = p * (products - delta) * scale; both 0 if masked.
  void (*gradients)(TileBlock scores, float* products, float scale, const float* lse,
                    const float* delta) = nullptr;
  // Scores behind the scale are capped: with t = tanh(tile * scale / cap), tile = cap * t. The derivative, (1
  // - t^2) * scale, goes to `slopes`, a tile like the first, unless it is null. tanh is within 8 roundings of
  // its size.
  void (*cap_scores)(TileBlock, float scale, float cap, float* slopes) = nullptr;
  // tile = the factor where the weight is kept, and 0 where it is dropped.
  void (*dropout)(TileBlock, const TileDropout&) = nullptr;
  // tile *= factors, a tile like it.
  void (*multiply_by)(TileBlock, const float* factors) = nullptr;
  // tile[row][column] *= factors[column] + factors_low[column]; only factors[column] if factors_low is null.
  void (*scale_columns)(TileBlock, const float* factors, const float* factors_low) = nullptr;
  // sums + low += terms, exactly but for the additions to low. `count` floats, a multiple of lanes.
  void (*add_to)(float* sums, float* low, const float* terms, std::int64_t count) = nullptr;
  // sums = sums + low, rounded. A sum that overflowed has a NaN as its low, and stays as it is.
  void (*round_sums)(float* sums, const float* low, std::int64_t count) = nullptr;
  // out = exp(in), within 2 ulp; 0 below -86.9, and infinite above 88.73.
  void (*exponential)(const float* in, float* out, std::int64_t count) = nullptr;
};

// The tables that this machine can run, the fastest first. The last one runs on every machine.
std::span<const TileKernels* const> tile_kernels();

}  // namespace cp
