#include "shared/transformer/rotary_table.h"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

// Of Llama 3.1: 64 pairs, a base of 500,000, and 8,192 positions at first. Waves of 2,048 positions and less
// stay, those of more than 8,192 are 8 times as long, and none between gets shorter or more than 8 times as
// long.
TEST(RotaryTable, LongWavesGetLonger) {
  const RotaryFrequencies plain{.theta = 5e5},
      scaled{.theta = 5e5, .scaling = RotaryScaling::llama3, .factor = 8, .original = 8192};
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

// What transformers 5.24 compute of the published configs, divided by the unscaled frequencies: pairs before
// `first` stay, those from `end` on are divided by the factor, and what is between them falls evenly.
TEST(RotaryTable, YarnGoesOverEvenlyFromPairToPair) {
  struct Published {
    const char* of;
    RotaryFrequencies rotary;
    std::int64_t dim;
    std::int64_t first, end;
    double at_first, at_last;  // of the pairs between, as in transformers
  };
  const auto yarn = [](double theta, double factor, double high, std::int64_t original) {
    return RotaryFrequencies{
        .theta = theta, .scaling = RotaryScaling::yarn, .factor = factor, .high = high, .original = original};
  };
  RotaryFrequencies gpt_oss = yarn(150'000, 32, 32, 4096);
  gpt_oss.whole_pairs = false;
  for (const Published& published :
       {Published{"DeepSeek-V3", yarn(10'000, 40, 32, 4096), 64, 11, 23, 0.925, 0.1},
        Published{"gpt-oss", gpt_oss, 64, 9, 18, 0.9055511, 0.0726875},
        Published{"Qwen with a factor of 4", yarn(1e6, 4, 32, 32'768), 128, 24, 40, 0.9558824, 0.2941176},
        // Both limits of Kimi K2 are 1, so that nothing is between pairs 19 and 20.
        Published{"Kimi K2", yarn(50'000, 32, 1, 4096), 64, 20, 20, 0, 0}}) {
    SCOPED_TRACE(published.of);
    const auto kept = [&](std::int64_t pair) {
      return rotary_frequency(published.rotary, pair, published.dim) *
             std::pow(published.rotary.theta,
                      2 * static_cast<double>(pair) / static_cast<double>(published.dim));
    };
    for (std::int64_t pair = 0; pair < published.dim / 2; ++pair) {
      if (pair < published.first) {
        EXPECT_NEAR(kept(pair), 1, 1e-12) << pair;
      } else if (pair >= published.end) {
        EXPECT_NEAR(kept(pair), 1 / published.rotary.factor, 1e-12) << pair;
      } else {
        const double way = static_cast<double>(pair - published.first) /
                           static_cast<double>(published.end - 1 - published.first);
        EXPECT_NEAR(kept(pair), published.at_first + way * (published.at_last - published.at_first), 3e-7)
            << pair;
      }
    }
  }
}

TEST(RotaryTable, LinearScalingMakesAllWavesLonger) {
  const RotaryFrequencies scaled{.theta = 1e6, .scaling = RotaryScaling::linear, .factor = 8};
  for (std::int64_t pair = 0; pair < 64; ++pair)
    EXPECT_DOUBLE_EQ(rotary_frequency(scaled, pair, 128), std::pow(1e6, -static_cast<double>(pair) / 64) / 8);
}

// Whatever the limits: no wave gets shorter, or more than so many times as long, and none stays where a
// shorter one does not.
RC_GTEST_PROP(RotaryTableProperty, ScalingKeepsTheOrderOfPairs, ()) {
  RotaryFrequencies scaled;
  scaled.theta = pick("theta", rc::gen::element(20.0, 1e4, 150'000.0, 1e6));
  scaled.scaling =
      pick("scaling", rc::gen::element(RotaryScaling::linear, RotaryScaling::llama3, RotaryScaling::yarn));
  scaled.factor = pick("factor", rc::gen::inRange(1, 65));
  scaled.low = pick("low", rc::gen::inRange(1, 9));
  scaled.high = scaled.low + pick("more", rc::gen::inRange(0, 40));
  scaled.original = pick("original", rc::gen::inRange(1, 40'000));
  scaled.whole_pairs = pick("whole_pairs", rc::gen::arbitrary<bool>());
  // With fewer positions than waves at the lower limit the way has no end (transformers').
  RC_PRE(static_cast<double>(scaled.original) >= 2 * std::numbers::pi * scaled.low);
  const std::int64_t pairs = pick("pairs", rc::gen::inRange(1, 65));
  RotaryFrequencies plain;
  plain.theta = scaled.theta;
  double before = 1;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const double kept = rotary_frequency(scaled, pair, 2 * pairs) / rotary_frequency(plain, pair, 2 * pairs);
    RC_ASSERT(kept <= 1 + 1e-12);
    RC_ASSERT(kept >= 1 / scaled.factor - 1e-12);
    RC_ASSERT(pair == 0 || kept <= before + 1e-12);
    before = kept;
  }
}

// Layers with a window have a table of their own behind that of the others, and each has its magnitude.
TEST(RotaryTable, HasASecondTableForLayersWithAWindow) {
  Transformer model = small_model();
  model.numerics.rotary.magnitude = 1.5;
  model.numerics.window_rotary = RotaryFrequencies{.theta = 16, .magnitude = 0.5};
  const std::vector<float> table = rotary_table(model, 3);
  ASSERT_EQ(table.size(), 48U);
  EXPECT_EQ(table[0], 1.5F);   // cos 0
  EXPECT_EQ(table[24], 0.5F);  // of the second table
  // Position 2 and pair 1 of 4: by 10000^(-1/4) a position, and by 16^(-1/4).
  EXPECT_NEAR(table[8 * 2 + 1], 1.5 * std::cos(0.2), 1e-7);
  EXPECT_NEAR(table[24 + 8 * 2 + 4 + 1], 0.5 * std::sin(1.0), 1e-7);
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
