#include "shared/kernels/product_tile.h"

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/dtype.h"
#include "shared/base/index.h"
#include "tests/kernels/kernel_memory.h"

namespace cp {
namespace {

using testing::KernelMemory;

std::vector<float> drawn(std::int64_t count, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::uniform_real_distribution<float> values(-2, 2);
  std::vector<float> all(idx(count));
  for (float& value : all) value = values(random);
  return all;
}

// One accumulator for each sum, in ascending k, each product fused with it, whatever the vectors: bit for
// bit.
TEST(ProductTile, IsTheSameForAllVectors) {
  for (int which = 0; which < product_tile_count(); ++which) {
    const ProductTile<float>& tile = product_tile(which);
    for (std::int64_t rows = 1; rows <= tile.rows; ++rows) {
      for (const std::int64_t depth : {0, 1, 5, 64}) {
        const std::vector<float> a = drawn(depth * tile.rows, 1), b = drawn(depth * tile.columns, 2),
                                 before = drawn(tile.rows * tile.columns, 3);
        for (const bool begins : {false, true}) {
          std::vector<float> expected = before, sums = before;
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < tile.columns; ++c) {
              float& sum = expected[idx(r * tile.columns + c)];
              if (begins) sum = 0;
              for (std::int64_t k = 0; k < depth; ++k)
                sum = std::fma(a[idx(k * tile.rows + r)], b[idx(k * tile.columns + c)], sum);
            }
          }
          tile.multiply(sums.data(), a.data(), b.data(), rows, depth, begins);
          EXPECT_EQ(sums, expected) << which << ": " << rows << " rows, depth " << depth;
        }
      }
    }
  }
}

// What the blocks and panels of a whole product do not change, wherever its sizes and strides lie: neither
// the order of a sum nor how often it is rounded. Sizes around those of tiles (8, 32) and of blocks (1024,
// 256).
TEST(ProductTile, SumsInOneOrderWhateverTheBlocks) {
  for (const auto& [m, k, n] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {9, 31, 33}, {8, 257, 32}, {1033, 3, 5}, {5, 2, 1057}, {13, 600, 70}}) {
    for (int transposed = 0; transposed < 8; ++transposed) {
      const auto view = [](BufferId id, std::int64_t rows, std::int64_t columns, bool across) {
        return across ? View{id, 0, {rows, columns}, {1, rows}, {}} : dense_view(id, 0, {rows, columns});
      };
      const std::vector<float> a = drawn(m * k, 4), b = drawn(k * n, 5);
      KernelMemory memory;
      const BufferId a_id = memory.add(DType::f32, {a.begin(), a.end()}),
                     b_id = memory.add(DType::f32, {b.begin(), b.end()}),
                     out = memory.add(DType::f32, std::vector<double>(idx(m * n), 7));
      const MatMul kernel{view(a_id, m, k, (transposed & 1) != 0), view(b_id, k, n, (transposed & 2) != 0),
                          view(out, m, n, (transposed & 4) != 0), false};
      memory.run(kernel);
      const auto at = [](const View& of, std::int64_t row, std::int64_t column) {
        return idx(row * of.strides[0] + column * of.strides[1]);
      };
      std::vector<double> expected(idx(m * n));
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          float sum = 0;
          for (std::int64_t l = 0; l < k; ++l)
            sum = std::fma(a[at(kernel.a, i, l)], b[at(kernel.b, l, j)], sum);
          expected[at(kernel.out, i, j)] = sum;
        }
      }
      ASSERT_EQ(memory.values(out), expected) << m << "x" << k << "x" << n << ", transposed " << transposed;
    }
  }
}

}  // namespace
}  // namespace cp
