#include "shared/kernels/product_rows.h"

#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/index.h"

namespace cp {
namespace {

// One accumulator for each sum, products rounded before they are added, whatever the vectors: bit for bit.
TEST(ProductRows, AreTheSameForAllVectors) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-2, 2);
  for (const std::int64_t rows : {1, 7, 8, 19}) {
    for (const std::int64_t columns : {1, 15, 16, 33, 70}) {
      for (const std::int64_t depth : {0, 1, 5, 64}) {
        std::vector<float> a(idx(rows * depth)), b(idx(depth * columns)), begin(idx(rows * columns));
        for (std::vector<float>* all : {&a, &b, &begin}) {
          for (float& value : *all) value = values(random);
        }
        std::vector<float> expected = begin;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < columns; ++c) {
            for (std::int64_t k = 0; k < depth; ++k) {
              const volatile float product = a[idx(r * depth + k)] * b[idx(k * columns + c)];  // rounded
              expected[idx(r * columns + c)] += product;
            }
          }
        }
        for (int which = 0; which < multiply_rows_count(); ++which) {
          std::vector<float> sums = begin;
          multiply_rows(which)(sums.data(), a.data(), b.data(), rows, columns, depth);
          EXPECT_EQ(sums, expected) << which << ": " << rows << " x " << depth << " x " << columns;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cp
