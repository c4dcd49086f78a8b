#include "shared/kernels/tile_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/kernels/philox.h"

namespace cp {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kUntouched = 12345;

class TileKernelsTest : public ::testing::TestWithParam<const TileKernels*> {
 protected:
  const TileKernels& tiles() const { return *GetParam(); }
  std::size_t at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * tiles().width() + column);
  }
};

INSTANTIATE_TEST_SUITE_P(Sets, TileKernelsTest,
                         ::testing::ValuesIn(tile_kernels().begin(), tile_kernels().end()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST(TileKernels, TheLastOneRunsEverywhere) {
  ASSERT_FALSE(tile_kernels().empty());
  EXPECT_EQ(tile_kernels().back()->name, "baseline");
  std::set<std::string_view> names;
  for (const TileKernels* tiles : tile_kernels()) {
    EXPECT_TRUE(names.insert(tiles->name).second);
    EXPECT_LT(tiles->width(), 64);  // a mask has a bit for each column
  }
}

std::vector<float> random_integers(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  return values;
}

// Sums of small integers are exact, in whatever order.
TEST_P(TileKernelsTest, ProductsEqualTheDefinition) {
  const std::int64_t panel = tiles().panel_rows, lanes = tiles().lanes, width = tiles().width();
  for (const bool a_is_tile : {false, true}) {
    for (const bool accumulate : {false, true}) {
      for (std::int64_t vectors = 1; vectors <= 2 * tiles().vectors + 2; ++vectors) {
        for (const std::int64_t depth : a_is_tile ? std::vector<std::int64_t>{0, 1, 5, width}
                                                  : std::vector<std::int64_t>{0, 1, 5, 63, 64, 95, 96, 129}) {
          const std::int64_t rows = 3 * panel, columns = vectors * lanes, b_row = columns + 3,
                             c_row = columns + lanes;
          const std::int64_t a_panel = panel * depth + 5;
          const std::vector<float> a = random_integers(a_is_tile ? rows * width : 3 * a_panel, 1),
                                   b = random_integers(std::max<std::int64_t>(1, depth) * b_row, 2);
          std::vector<float> c(static_cast<std::size_t>(rows * c_row), kUntouched), expected = c;
          for (std::int64_t m = 0; m < rows; ++m) {
            for (std::int64_t n = 0; n < columns; ++n) {
              float& sum = expected[static_cast<std::size_t>(m * c_row + n)];
              if (!accumulate) sum = 0;
              for (std::int64_t k = 0; k < depth; ++k) {
                const std::int64_t from =
                    a_is_tile ? m * width + k : m / panel * a_panel + k * panel + m % panel;
                sum += a[static_cast<std::size_t>(from)] * b[static_cast<std::size_t>(k * b_row + n)];
              }
            }
          }
          const TileProduct product{.a = a.data(),
                                    .a_panel = a_panel,
                                    .b = b.data(),
                                    .b_row = b_row,
                                    .c = c.data(),
                                    .c_row = c_row,
                                    .rows = rows,
                                    .depth = depth,
                                    .vectors = vectors,
                                    .accumulate = accumulate};
          a_is_tile ? tiles().multiply_tile(product) : tiles().multiply_panels(product);
          ASSERT_EQ(c, expected) << "tile " << a_is_tile << " vectors " << vectors << " depth " << depth;
        }
      }
    }
  }
}

float pair_of(float low, float high) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(low) >> 16 |
                              (std::bit_cast<std::uint32_t>(high) & 0xffff0000u));
}

// Integers up to 3 are exact in bf16.
TEST_P(TileKernelsTest, ProductsOfPairsEqualTheDefinition) {
  if (tiles().multiply_pairs == nullptr) GTEST_SKIP() << tiles().name << " has no products of bf16";
  const std::int64_t panel = tiles().panel_rows, width = tiles().width(), rows = 2 * panel;
  for (const std::int64_t pairs : {1, 3, 64}) {
    const std::vector<float> a = random_integers(2 * pairs * rows, 1),
                             b = random_integers(2 * pairs * width, 2);
    std::vector<float> a_pairs, b_pairs, c(static_cast<std::size_t>(rows * width), kUntouched), expected = c;
    const auto a_at = [&](std::int64_t m, std::int64_t k) {
      return a[static_cast<std::size_t>(k * rows + m)];
    };
    const auto b_at = [&](std::int64_t k, std::int64_t n) {
      return b[static_cast<std::size_t>(k * width + n)];
    };
    for (std::int64_t first = 0; first < rows; first += panel) {
      for (std::int64_t k = 0; k < 2 * pairs; k += 2) {
        for (std::int64_t m = first; m < first + panel; ++m) {
          a_pairs.push_back(pair_of(a_at(m, k), a_at(m, k + 1)));
        }
      }
    }
    for (std::int64_t k = 0; k < 2 * pairs; k += 2) {
      for (std::int64_t n = 0; n < width; ++n) b_pairs.push_back(pair_of(b_at(k, n), b_at(k + 1, n)));
    }
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::int64_t n = 0; n < width; ++n) {
        float& sum = expected[at(m, n)] = 0;
        for (std::int64_t k = 0; k < 2 * pairs; ++k) sum += a_at(m, k) * b_at(k, n);
      }
    }
    tiles().multiply_pairs({.a = a_pairs.data(),
                            .a_panel = panel * pairs,
                            .b = b_pairs.data(),
                            .b_row = width,
                            .c = c.data(),
                            .c_row = width,
                            .rows = rows,
                            .depth = pairs,
                            .vectors = tiles().vectors});
    ASSERT_EQ(c, expected) << pairs << " pairs";
  }
}

// Products of bf16 are added in f32: 1 + 2^-16 would be 1 in bf16.
TEST_P(TileKernelsTest, ProductsOfPairsAreAddedInF32) {
  if (tiles().multiply_pairs == nullptr) GTEST_SKIP() << tiles().name << " has no products of bf16";
  const std::int64_t panel = tiles().panel_rows, width = tiles().width();
  const std::vector<float> a(static_cast<std::size_t>(panel), pair_of(1, 0x1p-8f)),
      b(static_cast<std::size_t>(width), pair_of(1, 0x1p-8f));
  std::vector<float> c(static_cast<std::size_t>(panel * width));
  tiles().multiply_pairs({.a = a.data(),
                          .a_panel = panel,
                          .b = b.data(),
                          .b_row = width,
                          .c = c.data(),
                          .c_row = width,
                          .rows = panel,
                          .depth = 1,
                          .vectors = tiles().vectors});
  EXPECT_EQ(c, std::vector<float>(c.size(), 1 + 0x1p-16f));
}

// A sum and its low part lose nothing of what is added to them, however small beside the sum.
TEST_P(TileKernelsTest, SumsInTwoPartsAreExact) {
  constexpr float kTiny = 0x1p-20f;  // half of the last place of 16
  constexpr int kTimes = 40;
  const auto size = static_cast<std::size_t>(2 * tiles().width());
  std::vector<float> sums(size, 16), low(size, 0);
  const std::vector<float> terms(size, kTiny);
  for (int time = 0; time < kTimes; ++time) {
    tiles().add_to(sums.data(), low.data(), terms.data(), static_cast<std::int64_t>(size));
  }
  EXPECT_EQ(sums, std::vector<float>(size, 16));
  tiles().round_sums(sums.data(), low.data(), static_cast<std::int64_t>(size));
  EXPECT_EQ(sums, std::vector<float>(size, 16 + kTimes * kTiny));
}

// A term that is half of the last place of c is lost in c; 256 of them first make a sum of their own.
TEST_P(TileKernelsTest, ProductsAreAddedAsAWhole) {
  const std::int64_t panel = tiles().panel_rows, width = tiles().width(), depth = 256;
  const std::vector<float> a(static_cast<std::size_t>(panel * depth), 1),
      b(static_cast<std::size_t>(width * depth), 0x1p-20f);
  std::vector<float> c(static_cast<std::size_t>(panel * width), 16);
  tiles().multiply_panels({.a = a.data(),
                           .a_panel = panel * depth,
                           .b = b.data(),
                           .b_row = width,
                           .c = c.data(),
                           .c_row = width,
                           .rows = panel,
                           .depth = depth,
                           .vectors = tiles().vectors,
                           .accumulate = true});
  EXPECT_EQ(c, std::vector<float>(c.size(), 16 + 256 * 0x1p-20f));
}

TEST_P(TileKernelsTest, SumsThatOverflowStayInfinite) {
  std::vector<float> sums(static_cast<std::size_t>(tiles().lanes), std::numeric_limits<float>::max()),
      low(sums.size()), terms = sums;
  tiles().add_to(sums.data(), low.data(), terms.data(), tiles().lanes);
  tiles().round_sums(sums.data(), low.data(), tiles().lanes);
  EXPECT_EQ(sums, std::vector<float>(sums.size(), kFloatInfinity));
}

// In units of the last place of the exact value.
double ulps(float actual, double exact) {
  const float below = std::nextafter(static_cast<float>(exact), 0.0f);
  const double ulp = std::abs(static_cast<double>(static_cast<float>(exact)) - static_cast<double>(below));
  return std::abs(static_cast<double>(actual) - exact) / ulp;
}

TEST_P(TileKernelsTest, ExponentialIsWithinTwoUlp) {
  std::vector<float> in;
  constexpr std::uint32_t kStep = 1009;  // of the bits: every size of number, 2 million of them
  for (const float limit : {-86.9f, 88.72f}) {
    const std::uint32_t sign = std::signbit(limit) ? 0x80000000u : 0u,
                        end = std::bit_cast<std::uint32_t>(std::abs(limit));
    for (std::uint32_t bits = 0; bits <= end; bits += kStep) in.push_back(std::bit_cast<float>(bits | sign));
    in.push_back(limit);
  }
  std::vector<float> out(in.size());
  tiles().exponential(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  double worst = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double error = ulps(out[i], std::exp(static_cast<double>(in[i])));
    ASSERT_LE(error, 2) << in[i];
    worst = std::max(worst, error);
  }
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(TileKernelsTest, ExponentialOfSpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::max();
  const std::vector<float> in = {0.0f,  -0.0f, -kFloatInfinity, kFloatInfinity, nan,
                                 -most, most,  -87.0f,          89.0f,          -1e-30f};
  const std::vector<float> expected = {1, 1, 0, kFloatInfinity, nan, 0, kFloatInfinity, 0, kFloatInfinity, 1};
  for (std::size_t count = 0; count <= in.size(); ++count) {
    std::vector<float> out(in.size(), kUntouched);
    tiles().exponential(in.data(), out.data(), static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < in.size(); ++i) {
      const float wanted = i < count ? expected[i] : kUntouched;
      EXPECT_TRUE(out[i] == wanted || (std::isnan(out[i]) && std::isnan(wanted))) << in[i] << " " << out[i];
    }
  }
}

// A tile whose cells are all different, and a mask that hides some of them, from the given vector on.
TEST_P(TileKernelsTest, SoftmaxOfABlockEqualsTheDefinition) {
  const std::int64_t width = tiles().width(), rows = 2 * tiles().panel_rows;
  for (std::int64_t first = 0; first < tiles().vectors; ++first) {
    for (const bool masked : {false, true}) {
      const auto size = static_cast<std::size_t>(rows * width);
      std::vector<float> tile(size), weights(size, kUntouched),
          greatest(static_cast<std::size_t>(width), -kFloatInfinity),
          sums(static_cast<std::size_t>(width), 1), low(static_cast<std::size_t>(width));
      for (std::size_t i = 0; i < size; ++i) tile[i] = static_cast<float>(i * 37 % 101) - 50;
      std::vector<std::uint64_t> mask;
      for (std::int64_t row = 0; row < rows; ++row) {
        mask.push_back(masked ? 0x5a5a5a5a5a5a5a5aU ^ (std::uint64_t{1} << (row % 64)) : ~std::uint64_t{0});
        mask.back() &= ~(std::uint64_t{1} << (first * tiles().lanes));  // a column that sees nothing
      }
      const std::vector<float> before = tile;
      const TileBlock block{tile.data(), mask.data(), rows, first, tiles().vectors - first};
      tiles().scale_scores(block, 0.5f, greatest.data());
      weights = tile;
      tiles().exponentials({weights.data(), nullptr, rows, first, tiles().vectors - first}, greatest.data(),
                           sums.data(), low.data());
      for (std::int64_t column = 0; column < width; ++column) {
        float most = -kFloatInfinity;
        double sum = 1;
        for (std::int64_t row = 0; row < rows; ++row) {
          const bool seen = (mask[static_cast<std::size_t>(row)] >> column & 1) != 0;
          const float expected = column < first * tiles().lanes ? before[at(row, column)]
                                 : seen                         ? before[at(row, column)] * 0.5f
                                                                : -kFloatInfinity;
          ASSERT_EQ(tile[at(row, column)], expected);
          if (column >= first * tiles().lanes) most = std::max(most, expected);
        }
        ASSERT_EQ(greatest[static_cast<std::size_t>(column)], most);
        for (std::int64_t row = 0; row < rows && column >= first * tiles().lanes; ++row) {
          const double weight =
              most == -kFloatInfinity ? 0 : std::exp(static_cast<double>(tile[at(row, column)] - most));
          ASSERT_NEAR(weights[at(row, column)], weight, 0x1p-22 * weight);
          sum += weight;
        }
        // Each addition rounds once, and each weight is off by 2 ulp.
        ASSERT_NEAR(sums[static_cast<std::size_t>(column)], sum,
                    (static_cast<double>(rows) + 4) * 0x1p-24 * sum);
      }
    }
  }
}

TEST_P(TileKernelsTest, GradientsOfABlockEqualTheDefinition) {
  const std::int64_t width = tiles().width(), rows = tiles().panel_rows;
  const auto size = static_cast<std::size_t>(rows * width);
  for (const bool masked : {false, true}) {
    std::vector<float> scores(size), products(size), lse, delta;
    for (std::size_t i = 0; i < size; ++i) {
      scores[i] = static_cast<float>(i % 11) - 5, products[i] = static_cast<float>(i % 7) - 3;
    }
    for (std::int64_t column = 0; column < width; ++column) {
      lse.push_back(column == 1 ? kFloatInfinity : static_cast<float>(column % 3)), delta.push_back(0.5f);
    }
    const std::vector<std::uint64_t> mask(static_cast<std::size_t>(rows), 0x3333333333333333U);
    const std::vector<float> s = scores, dp = products;
    tiles().gradients({scores.data(), masked ? mask.data() : nullptr, rows, 0, tiles().vectors},
                      products.data(), 0.5f, lse.data(), delta.data());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < width; ++column) {
        const bool seen = !masked || column % 4 < 2;
        const double p =
            seen ? std::exp(0.5 * s[at(row, column)] - lse[static_cast<std::size_t>(column)]) : 0;
        const double ds = p * (dp[at(row, column)] - 0.5) * 0.5;
        ASSERT_NEAR(scores[at(row, column)], p, 0x1p-22 * p);
        ASSERT_NEAR(products[at(row, column)], ds, 0x1p-21 * std::abs(ds));  // 2 ulp of p and two roundings
      }
    }
  }
}

// ---- what changes scores and weights ----

TEST_P(TileKernelsTest, CapsScoresByATanh) {
  const std::int64_t rows = 8;
  const float scale = 0.75f, cap = 4;
  std::vector<float> tile(static_cast<std::size_t>(rows * tiles().width())), slopes(tile.size(), kUntouched);
  // Both polynomials, their seam at 0.625 and what is far beyond.
  for (std::size_t i = 0; i < tile.size(); ++i)
    tile[i] = static_cast<float>(std::ldexp(static_cast<double>(i % 97) - 48, static_cast<int>(i % 7) - 6));
  tile[0] = 0.625f * cap / scale, tile[1] = -tile[0], tile[2] = 1e30f, tile[3] = -1e30f;
  const std::vector<float> before = tile;
  const TileBlock block{tile.data(), nullptr, rows, 1, tiles().vectors - 1};
  tiles().cap_scores(block, scale, cap, slopes.data());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < tiles().width(); ++column) {
      const std::size_t i = at(row, column);
      if (column < tiles().lanes) {
        EXPECT_EQ(tile[i], before[i]);
        EXPECT_EQ(slopes[i], kUntouched);
        continue;
      }
      // The quotient and the product before tanh round, and move it by less than themselves.
      const double t = std::tanh(static_cast<double>(before[i]) * 0.75 / 4);
      EXPECT_NEAR(static_cast<double>(tile[i]), 4 * t, 8 * 0x1p-24 * std::abs(4 * t));
      EXPECT_NEAR(static_cast<double>(slopes[i]), (1 - t * t) * 0.75, 32 * 0x1p-24 * 0.75);
    }
  }
  std::vector<float> again = before;
  tiles().cap_scores({again.data(), nullptr, rows, 1, tiles().vectors - 1}, scale, cap, nullptr);
  EXPECT_EQ(again, tile);
}

// Of rows that are no fours of keys, and counters of more than 16 bits.
TEST_P(TileKernelsTest, DropsByThePhiloxOfEachWeight) {
  const std::int64_t rows = 8, width = tiles().width();
  const std::vector<std::uint32_t> keys = {6, 7, 8, 9, 100'000, 100'003, 2, 0xffffffff};
  std::vector<std::uint32_t> queries(static_cast<std::size_t>(width)), heads(queries.size());
  for (std::size_t i = 0; i < queries.size(); ++i)
    queries[i] = static_cast<std::uint32_t>(i * 0x1234567),
    heads[i] = static_cast<std::uint32_t>(i % 5 + 70'000);
  const std::uint32_t threshold = dropout_threshold(0.4);
  const TileDropout dropout{keys.data(), queries.data(),           heads.data(), 3, 0x8badf00ddeadbeef,
                            threshold,   dropout_factor(threshold)};
  std::vector<float> tile(static_cast<std::size_t>(rows * width), kUntouched), values(tile.size(), 3);
  tiles().dropout({tile.data(), nullptr, rows, 0, tiles().vectors}, dropout);
  int dropped = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < width; ++column) {
      const auto r = static_cast<std::size_t>(row), c = static_cast<std::size_t>(column);
      const PhiloxWords words = philox({{keys[r] / 4, queries[c], heads[c], 3}}, 0x8badf00ddeadbeef);
      const bool drops = words.words[keys[r] % 4] < threshold;
      EXPECT_EQ(tile[at(row, column)], drops ? 0 : dropout.factor);
      dropped += drops ? 1 : 0;
    }
  }
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, rows * width);
  tiles().multiply_by({values.data(), nullptr, rows, 0, tiles().vectors}, tile.data());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 3 * tile[i]);
}

}  // namespace
}  // namespace cp
