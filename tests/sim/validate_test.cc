// What validation tables say of themselves; and that they are within their targets.
#include "sim/validate/validate.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp::sim {
namespace {

TEST(ErrorSummary, PercentilesLieBetweenTheValues) {
  const ErrorSummary summary = summarize({0.4, 0.1, 0.2, 0.3, 0.5});
  EXPECT_EQ(summary.rows, 5);
  EXPECT_DOUBLE_EQ(summary.median, 0.3);
  EXPECT_DOUBLE_EQ(summary.p90, 0.46);
  EXPECT_DOUBLE_EQ(summary.worst, 0.5);
  EXPECT_EQ(summarize({}).rows, 0);
}

ValidationRow row(double measured_us, double predicted_us, bool in_sample, const char* oddity = "",
                  const char* grid = "") {
  return {{}, {}, measured_us, predicted_us, in_sample, std::string(oddity), std::string(grid)};
}

TEST(ValidationTable, ScoresWhatSetNothingAndIsNoOddity) {
  ValidationTable table;
  table.rows = {row(100, 200, true), row(100, 110, false), row(100, 70, false), row(100, 900, false, "odd")};
  EXPECT_EQ(table.summary(true).rows, 1);
  EXPECT_EQ(table.summary(false).rows, 2);
  EXPECT_DOUBLE_EQ(table.summary(false).median, 0.2);
  table.target_median = 0.21;
  EXPECT_TRUE(table.within_target());
  table.target_p90 = 0.25;
  EXPECT_FALSE(table.within_target());
}

TEST(ValidationTable, OrderingsAreRightWithinFivePercent) {
  ValidationTable table;
  table.rows = {row(100, 50, false, "", "a"), row(104, 40, false, "", "a"),   // 4 % off the best
                row(100, 50, false, "", "b"), row(106, 40, false, "", "b"),   // 6 %
                row(100, 50, false, "", "c"),                                 // no alternative
                row(100, 50, false, "", "d"), row(90, 60, false, "x", "d")};  // not scored
  EXPECT_EQ(table.orderings().grids, 2);
  EXPECT_EQ(table.orderings().right, 1);
}

// The whole of `cpsim validate`, row by row; the slowest of these takes seconds.
class Validation : public ::testing::TestWithParam<std::string> {};

TEST_P(Validation, IsWithinItsTarget) {
  const ValidationTable table = validate_table(GetParam());
  EXPECT_GT(table.summary(false).rows, 0);
  EXPECT_TRUE(table.within_target()) << table.summary(false).median << " " << table.summary(false).p90;
  for (const ValidationRow& each : table.rows) {
    EXPECT_TRUE(std::isfinite(each.predicted) && each.predicted > 0) << each.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, Validation, ::testing::ValuesIn(validation_names()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace cp::sim
