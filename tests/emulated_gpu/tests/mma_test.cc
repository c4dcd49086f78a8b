// The fragments of mma.h against the text of the PTX ISA and a plain product, in every position.
#include "runtime/cuda/mma.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace cp::runtime {
namespace {

struct Place {
  int row = 0, column = 0;
};

// "Matrix Fragments for mma.m16n8k8" of .tf32 and "... for mma.m16n8k16" of .f16 and .bf16: the place of the
// i-th value of a lane, of one word each or of two to a word.
Place of_a(int values_of_word, int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  if (values_of_word == 1) return {i == 0 || i == 2 ? group : group + 8, i < 2 ? thread : thread + 4};
  return {(i >= 0 && i < 2) || (i >= 4 && i < 6) ? group : group + 8,
          i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8};
}
Place of_b(int values_of_word, int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  if (values_of_word == 1) return {i == 0 ? thread : thread + 4, group};
  return {i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8, group};
}
Place of_c(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

template <class T>
std::uint32_t bits_of(float value) {
  if constexpr (std::is_same_v<T, MmaTf32>) return to_tf32(value);
  return std::is_same_v<T, MmaF16> ? f32_to_f16(value) : f32_to_bf16(value);
}

template <class T>
class Product {
 public:
  static constexpr int kOfWord = T::kValues, kDepth = 8 * kOfWord;
  float a[16][kDepth] = {}, b[kDepth][8] = {}, c[16][8] = {};

  // Fills the fragments by the ISA, and leaves the result in c.
  void compute() {
    PerLane<MmaRows> rows;
    PerLane<MmaColumns> columns;
    PerLane<MmaSums> sums;
    for (int lane = 0; lane < 32; ++lane) {
      rows[lane] = {}, columns[lane] = {};
      for (int i = 0; i < 4 * kOfWord; ++i) {
        const Place at = of_a(kOfWord, lane, i);
        rows[lane].words[i / kOfWord] |= bits_of<T>(a[at.row][at.column]) << (16 * (i % kOfWord));
      }
      for (int i = 0; i < 2 * kOfWord; ++i) {
        const Place at = of_b(kOfWord, lane, i);
        columns[lane].words[i / kOfWord] |= bits_of<T>(b[at.row][at.column]) << (16 * (i % kOfWord));
      }
      for (int i = 0; i < 4; ++i) sums[lane].values[i] = c[of_c(lane, i).row][of_c(lane, i).column];
    }
    mma<T>(
        Warp(64), [&](int thread) -> MmaSums& { return sums[thread]; },
        [&](int thread) -> const MmaRows& { return rows[thread]; },
        [&](int thread) -> const MmaColumns& { return columns[thread]; });
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) c[of_c(lane, i).row][of_c(lane, i).column] = sums[lane].values[i];
  }
};

template <class T>
class Mma : public ::testing::Test {};
using Kinds = ::testing::Types<MmaTf32, MmaF16, MmaBf16>;
TYPED_TEST_SUITE(Mma, Kinds);

// A single one in A takes a row of B to a row of the sums.
TYPED_TEST(Mma, EveryPlaceOfAMeetsItsRowOfB) {
  using Of = Product<TypeParam>;
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < Of::kDepth; ++k) {
      Of product;
      product.a[r][k] = 1;
      for (int i = 0; i < Of::kDepth; ++i)
        for (int j = 0; j < 8; ++j) product.b[i][j] = static_cast<float>(1 + i * 8 + j);
      product.compute();
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j)
          ASSERT_EQ(product.c[i][j], i == r ? static_cast<float>(1 + k * 8 + j) : 0) << i << ' ' << j;
    }
  }
}

TYPED_TEST(Mma, IsThePlainProductAndItsSum) {
  using Of = Product<TypeParam>;
  std::mt19937 random(7);
  const auto draw = [&] { return static_cast<float>(static_cast<int>(random() % 31) - 15) / 8; };
  for (int times = 0; times < 10; ++times) {
    Of product;
    double expected[16][8];
    for (auto& row : product.a)
      for (float& value : row) value = draw();
    for (auto& row : product.b)
      for (float& value : row) value = draw();
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        product.c[i][j] = draw();
        expected[i][j] = static_cast<double>(product.c[i][j]);
        for (int k = 0; k < Of::kDepth; ++k)
          expected[i][j] += static_cast<double>(product.a[i][k]) * static_cast<double>(product.b[k][j]);
      }
    }
    product.compute();
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) ASSERT_EQ(static_cast<double>(product.c[i][j]), expected[i][j]);
  }
}

TEST(MmaSumsOfTensorCores, AreCutOffAndNotRounded) {
  for (const float sign : {1.0F, -1.0F}) {
    Product<MmaTf32> product;
    product.a[0][0] = sign * 0x1.8p-24F, product.b[0][0] = 1, product.c[0][0] = sign;
    product.compute();
    EXPECT_EQ(product.c[0][0], sign);
  }
}

TEST(MmaTf32Words, TheHardwareIgnoresTheBitsThatTf32HasNot) {
  PerLane<MmaRows> rows;
  PerLane<MmaColumns> columns;
  PerLane<MmaSums> sums;
  for (int lane = 0; lane < 32; ++lane) {
    for (std::uint32_t& word : rows[lane].words) word = std::bit_cast<std::uint32_t>(0x1.001ffep0F);
    for (std::uint32_t& word : columns[lane].words) word = std::bit_cast<std::uint32_t>(1.0F);
    sums[lane] = {};
  }
  mma<MmaTf32>(
      Warp(0), [&](int thread) -> MmaSums& { return sums[thread]; },
      [&](int thread) -> const MmaRows& { return rows[thread]; },
      [&](int thread) -> const MmaColumns& { return columns[thread]; });
  EXPECT_EQ(sums[0].values[0], 8.0F);
}

TEST(Tf32Split, IsWithinAUnitInTheLastPlaceOfF32) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const float value = std::ldexp(static_cast<float>(static_cast<int>(random() % (1U << 25)) - (1 << 24)),
                                   static_cast<int>(random() % 60) - 50);
    const Tf32Split split = split_tf32(value);
    EXPECT_EQ(split.big % (1U << 13), 0U);
    EXPECT_EQ(split.small % (1U << 13), 0U);
    const double sum = static_cast<double>(std::bit_cast<float>(split.big)) +
                       static_cast<double>(std::bit_cast<float>(split.small));
    ASSERT_LE(std::abs(sum - static_cast<double>(value)), std::abs(static_cast<double>(value)) * 0x1p-23)
        << value;
  }
  EXPECT_EQ(to_tf32(0x1.002p0F), std::bit_cast<std::uint32_t>(0x1.004p0F));  // ties away from zero
  EXPECT_EQ(to_tf32(-0x1.002p0F), std::bit_cast<std::uint32_t>(-0x1.004p0F));
  EXPECT_TRUE(std::isinf(std::bit_cast<float>(to_tf32(std::numeric_limits<float>::infinity()))));
  // Every value of 16 bits is itself.
  for (std::uint32_t bits = 0; bits < 1U << 16; ++bits) {
    for (const float value :
         {f16_to_f32(static_cast<std::uint16_t>(bits)), bf16_to_f32(static_cast<std::uint16_t>(bits))}) {
      if (!std::isnan(value)) {
        ASSERT_EQ(to_tf32(value), std::bit_cast<std::uint32_t>(value));
      }
    }
  }
}

TEST(Quads, AllFourLanesGetTheCombinedValue) {
  PerLane<float> values;
  for (int lane = 0; lane < 32; ++lane) values[lane] = static_cast<float>(lane * lane % 23);
  const PerLane<float> before = values;
  combine_quads(
      Warp(32), [&](int thread) -> float& { return values[thread]; },
      [](float a, float b) { return std::max(a, b); });
  for (int lane = 0; lane < 32; ++lane) {
    float most = 0;
    for (int i = 0; i < 4; ++i) most = std::max(most, PerLane<float>(before)[lane / 4 * 4 + i]);
    EXPECT_EQ(values[lane], most);
  }
}

}  // namespace
}  // namespace cp::runtime
