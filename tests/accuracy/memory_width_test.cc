#include "sim/accuracy/validate/memory_width.h"

#include <gtest/gtest.h>

#include "sim/accuracy/validate/published_steps.h"

namespace cp::sim {
namespace {

TEST(MemoryWidth, OfFewRunsIsTheirExtremes) {
  const MemoryWidth of = memory_width_of({1.01, 0.92, 1.0});
  EXPECT_EQ(of.low, 0.92);
  EXPECT_EQ(of.high, 1.01);
  EXPECT_EQ(of.rows, 3);
}

// Of 19 runs in order there are 20 gaps for the next one: four fifths of them lie between the second and the
// last but one.
TEST(MemoryWidth, OfManyRunsHoldsFourInFive) {
  std::vector<double> ratios;
  for (int i = 19; i > 0; --i) ratios.push_back(i);
  EXPECT_EQ(memory_width_of(ratios).low, 2);
  EXPECT_EQ(memory_width_of(ratios).high, 18);
}

TEST(MemoryWidth, OfNoneSaysNothing) {
  EXPECT_EQ(memory_width_of({}).rows, 0);
  EXPECT_EQ(memory_width_of({}).high, 1);
}

// The errors of the validation's own table.
TEST(MemoryWidth, IsMadeOfThePublishedRuns) {
  const MemoryWidth& width = measured_memory_width();
  int rows = 0;
  for (const PublishedStep& step : published_steps()) {
    if (step.metric != PublishedStep::Metric::peak_memory_gib) continue;
    ++rows;
    const double ratio = step.measured / predict(step);
    EXPECT_GE(ratio, width.low) << step.what;
    EXPECT_LE(ratio, width.high) << step.what;
  }
  EXPECT_EQ(width.rows, rows);
  EXPECT_LT(width.low, width.high);
}

}  // namespace
}  // namespace cp::sim
