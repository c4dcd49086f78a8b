#include "shared/transformer/rotary_table.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

// Of Llama 3.1: 64 pairs, a base of 500,000, and 8,192 positions at first. Waves of 2,048 positions and less
// stay, those of more than 8,192 are 8 times as long, and none between gets shorter or more than 8 times as
// long.
TEST(RotaryTable, LongWavesGetLonger) {
  RotaryFrequencies scaled{5e5, 8, 1, 4, 8192, false}, plain = scaled;
  plain.factor = 1;
  int stay = 0, grow = 0;
  for (std::int64_t pair = 0; pair < 64; ++pair) {
    const double before = rotary_frequency(plain, pair, 128), after = rotary_frequency(scaled, pair, 128),
                 wave = 2 * std::numbers::pi / before;
    EXPECT_DOUBLE_EQ(before, std::pow(5e5, -static_cast<double>(pair) / 64));
    if (wave < 2048) {
      EXPECT_EQ(after, before) << pair;
      ++stay;
    } else if (wave > 8192) {
      EXPECT_DOUBLE_EQ(after, before / 8) << pair;
      ++grow;
    } else {
      // Evenly in the number of waves, from 1 of 8,192 positions to 4.
      const double kept = (8192 / wave - 1) / 3;
      EXPECT_NEAR(after, before * (kept + (1 - kept) / 8), 1e-15) << pair;
    }
  }
  EXPECT_EQ(stay, 29);  // 64 ln(2048 / 2 pi) / ln 500,000 = 28.2: pairs 0 to 28
  EXPECT_EQ(grow, 29);  // 64 ln(8192 / 2 pi) / ln 500,000 = 34.99: pairs 35 to 63
}

TEST(RotaryTable, HasCosinesAndThenSinesOfEachPosition) {
  const Transformer model = small_model();  // 8 columns of a head, all of them rotated
  const std::vector<float> table = rotary_table(model, 3);
  ASSERT_EQ(table.size(), 24U);
  for (std::size_t position = 0; position < 3; ++position) {
    for (std::size_t pair = 0; pair < 4; ++pair) {
      const double angle = static_cast<double>(position) / std::pow(10.0, static_cast<double>(pair));
      EXPECT_NEAR(table[8 * position + pair], std::cos(angle), 1e-7);
      EXPECT_NEAR(table[8 * position + 4 + pair], std::sin(angle), 1e-7);
    }
  }
}

}  // namespace
}  // namespace cp::testing
