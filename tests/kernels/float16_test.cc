#include "shared/kernels/float16.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "shared/kernels/host_kernels.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::kInfinity;

// A 16-bit format by its definition: sign, exponent bits, mantissa bits.
struct Format {
  DType dtype;
  int mantissa_bits;
  int bias;
  std::uint16_t infinity;  // its bits; all smaller ones are the finite values >= 0, ascending

  double finite(std::uint16_t bits) const {
    const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const int scale = std::max(exponent, 1) - bias - mantissa_bits;
    return std::ldexp((exponent == 0 ? 0 : 1 << mantissa_bits) + mantissa, scale);
  }
  float widen(std::uint16_t bits) const { return dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits); }
  std::uint16_t narrow(float value) const {
    return dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
  }
  std::uint16_t narrow(double value) const {
    std::uint16_t bits = 0;
    store_element(dtype, reinterpret_cast<std::byte*>(&bits), 0, value);
    return bits;
  }
};

class Float16 : public ::testing::TestWithParam<Format> {};

TEST_P(Float16, WidensEveryValueExactly) {
  const Format format = GetParam();
  for (std::uint16_t bits = 0; bits < format.infinity; ++bits) {
    ASSERT_EQ(format.widen(bits), format.finite(bits)) << bits;
    const auto negative = static_cast<std::uint16_t>(bits | 0x8000);
    ASSERT_EQ(format.widen(negative), -format.finite(bits)) << bits;
    ASSERT_TRUE(std::signbit(format.widen(negative)));
    ASSERT_EQ(format.narrow(format.widen(bits)), bits);
    ASSERT_EQ(format.narrow(format.widen(negative)), negative);
  }
  EXPECT_EQ(format.widen(format.infinity), kInfinity);
  EXPECT_EQ(format.widen(static_cast<std::uint16_t>(format.infinity | 0x8000)), -kInfinity);
}

// Between each two neighbours: just below, at and just above the middle, in f32 and in f64.
TEST_P(Float16, NarrowsToTheNearestTiesToEven) {
  const Format format = GetParam();
  for (std::uint16_t low = 0; low < format.infinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double high_value =
        high < format.infinity ? format.finite(high)
                               : 2 * format.finite(low) - format.finite(static_cast<std::uint16_t>(low - 1));
    const double middle = (format.finite(low) + high_value) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(format.narrow(middle), even) << low;
    ASSERT_EQ(format.narrow(std::nextafter(middle, 0)), low);
    ASSERT_EQ(format.narrow(std::nextafter(middle, kInfinity)), high);
    const float middle_f32 = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(middle_f32), middle);
    ASSERT_EQ(format.narrow(middle_f32), even) << low;
    ASSERT_EQ(format.narrow(-middle_f32), even | 0x8000) << low;
    ASSERT_EQ(format.narrow(std::nextafter(middle_f32, 0.0f)), low);
    ASSERT_EQ(format.narrow(std::nextafter(middle_f32, std::numeric_limits<float>::infinity())), high);
  }
}

TEST_P(Float16, KeepsNaNsAndInfinities) {
  const Format format = GetParam();
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const std::uint16_t narrow = format.narrow(std::bit_cast<float>(bits));
    EXPECT_GT(narrow & 0x7fff, format.infinity) << bits;
    EXPECT_EQ(narrow >> 15, bits >> 31) << bits;
    EXPECT_TRUE(std::isnan(format.widen(narrow)));
  }
  for (int bits = format.infinity + 1; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(format.widen(static_cast<std::uint16_t>(bits)))) << bits;
  }
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::infinity()), format.infinity);
  EXPECT_EQ(format.narrow(-std::numeric_limits<float>::infinity()), format.infinity | 0x8000);
  EXPECT_EQ(format.narrow(1e300), format.infinity);
  EXPECT_EQ(format.narrow(1e-300), 0);
  EXPECT_EQ(format.narrow(-1e-300), 0x8000);
}

INSTANTIATE_TEST_SUITE_P(Formats, Float16,
                         ::testing::Values(Format{DType::f16, 10, 15, 0x7c00},
                                           Format{DType::bf16, 7, 127, 0x7f80}),
                         [](const auto& test) { return std::string(name(test.param.dtype)); });

TEST(RoundToOdd, IntegersKeepWhatALaterRoundingNeeds) {
  // 2^24 + 1 lies next to the middle of no pair of bf16 values; 2^40 + 2^32 is such a middle, and one more
  // decides.
  constexpr std::int64_t kMiddle = (std::int64_t{1} << 40) + (std::int64_t{1} << 32);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(round_to_odd(kMiddle))), 0x1p40f);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(round_to_odd(kMiddle + 1))), 0x1.02p40f);
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(round_to_odd(-kMiddle - 1))), -0x1.02p40f);
  EXPECT_EQ(round_to_odd(std::int64_t{16777216}), 16777216.0f);
  EXPECT_EQ(round_to_odd(std::numeric_limits<std::int64_t>::min()), -0x1p63f);
}

}  // namespace
}  // namespace cp
