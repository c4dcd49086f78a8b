// The code of product_rows.h, for the vectors of the file that includes it. Sums of some rows and vectors
// stay in registers while k runs through the depth.
#pragma once

#include <cstdint>
#include <cstring>

namespace cp {
namespace {

// `kRows` rows and `kVectors` vectors of `kLanes` floats are summed at a time: with two vectors of b and one
// value of a beside them, that is what the registers hold.
template <int kLanes, int kRows, int kVectors>
struct RowProducts {
  typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

  static Vector load(const float* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
  }

  template <int kBlock>
  static void block(float* sums, const float* a, const float* b, std::int64_t columns, std::int64_t depth) {
    Vector sum[kBlock][kVectors];
    for (int r = 0; r < kBlock; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load(sums + r * columns + v * kLanes);
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      Vector of_b[kVectors];
      for (int v = 0; v < kVectors; ++v) of_b[v] = load(b + k * columns + v * kLanes);
      for (int r = 0; r < kBlock; ++r) {
        const float factor = a[r * depth + k];
        for (int v = 0; v < kVectors; ++v) sum[r][v] += factor * of_b[v];
      }
    }
    for (int r = 0; r < kBlock; ++r) {
      for (int v = 0; v < kVectors; ++v)
        std::memcpy(sums + r * columns + v * kLanes, &sum[r][v], sizeof(Vector));
    }
  }

  // The columns that fill no vectors, one after the other.
  static void rest(float* sums, const float* a, const float* b, std::int64_t columns, std::int64_t first,
                   std::int64_t depth) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const float factor = a[k];
      for (std::int64_t c = first; c < columns; ++c) sums[c] += factor * b[k * columns + c];
    }
  }

  static void run(float* sums, const float* a, const float* b, std::int64_t rows, std::int64_t columns,
                  std::int64_t depth) {
    constexpr std::int64_t kWidth = std::int64_t{kLanes} * kVectors;
    const std::int64_t whole = columns / kWidth * kWidth;
    for (std::int64_t c = 0; c < whole; c += kWidth) {
      std::int64_t r = 0;
      for (; r + kRows <= rows; r += kRows)
        block<kRows>(sums + r * columns + c, a + r * depth, b + c, columns, depth);
      for (; r < rows; ++r) block<1>(sums + r * columns + c, a + r * depth, b + c, columns, depth);
    }
    for (std::int64_t r = 0; whole < columns && r < rows; ++r)
      rest(sums + r * columns, a + r * depth, b, columns, whole, depth);
  }
};

}  // namespace
}  // namespace cp
