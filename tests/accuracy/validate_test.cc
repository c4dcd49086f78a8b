// What validation tables say of themselves; that they are within their targets; and the page of them.
#include "sim/accuracy/validate/validate.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/accuracy/validate/accuracy_page.h"
#include "sim/base/parallel_for.h"
#include "tests/support/golden.h"

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
  EXPECT_FALSE(table.within_target()) << "a table without a target meets none";
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

TEST(ValidationTable, ErrorsHaveASign) {
  ValidationTable table;
  table.rows = {row(100, 90, false), row(100, 80, false), row(100, 130, false)};
  EXPECT_NEAR(table.summary(false).signed_median, -0.1, 1e-12);
  EXPECT_NEAR(table.summary(false).median, 0.2, 1e-12);
}

TEST(ValidationTable, CountsTheTestRowsInTheirIntervals) {
  ValidationTable table;
  table.rows = {row(100, 90, false), row(100, 80, false), row(100, 80, true), row(100, 80, false, "odd"),
                row(100, 100, false)};
  for (std::size_t i = 0; i < 4; ++i)
    table.rows[i].low = 0.8 * table.rows[i].predicted, table.rows[i].high = 1.2 * table.rows[i].predicted;
  EXPECT_EQ(table.coverage().rows, 2) << "those that set something, are not scored or have none are left out";
  EXPECT_EQ(table.coverage().inside, 1);
}

TEST(ValidationTable, TheRegretIsThatOfWhatIsChosen) {
  ValidationTable table;
  table.rules = {"always the first"};
  table.rows = {row(100, 50, false, "", "a"), row(110, 40, false, "", "a"), row(100, 50, false, "", "b"),
                row(130, 60, false, "", "b"), row(100, 50, false, "", "c"), row(150, 40, false, "", "c")};
  for (const std::size_t first : {0, 3}) table.rows[first].rules = 1;
  const OrderingSummary model = table.orderings(), rule = table.orderings_of_rule(0);
  EXPECT_EQ(model.grids, 3);
  EXPECT_EQ(model.right, 1);
  EXPECT_NEAR(model.median_regret, 0.1, 1e-12);
  EXPECT_NEAR(model.mean_regret, 0.2, 1e-12);
  EXPECT_NEAR(model.worst_regret, 0.5, 1e-12);
  EXPECT_EQ(rule.grids, 2) << "of group c the rule says nothing";
  EXPECT_NEAR(rule.mean_regret, 0.15, 1e-12);
}

TEST(ValidationTable, SaysWhatItWouldSayWithWhatIsExcluded) {
  ValidationTable table;
  table.rows = {row(100, 90, false), row(100, 50, false, "late"), row(100, 110, true),
                row(100, 70, false, "late"), row(100, 200, false, "early")};
  const std::vector<Exclusion> exclusions = table.exclusions();
  ASSERT_EQ(exclusions.size(), 2U);
  EXPECT_EQ(exclusions[0].reason, "late");
  EXPECT_EQ(exclusions[0].rows, 2);
  EXPECT_NEAR(exclusions[0].signed_median, -0.4, 1e-12);
  EXPECT_EQ(exclusions[0].with.rows, 3) << "of one reason at a time, and without what set something";
  EXPECT_NEAR(exclusions[0].with.median, 0.3, 1e-12);
  EXPECT_NEAR(exclusions[1].with.worst, 1, 1e-12);
}

TEST(ValidationTable, RescaledKernelsAreNoAnswersAndCountInNoTotal) {
  ValidationTable answers, rescaled;
  answers.rows = {row(100, 90, false, "", "a"), row(110, 80, false, "", "a")};
  for (ValidationRow& each : answers.rows) each.low = 1, each.high = 200;
  rescaled = answers;
  rescaled.rescaled = true;
  EXPECT_EQ(coverage_of({answers, rescaled}).rows, 2);
  EXPECT_EQ(orderings_of({answers, rescaled}).grids, 1);
}

// A pair has the errors of two: of a standard deviation of s each the median of their difference is 0.674
// sqrt(2) s.
TEST(WidthChecks, AStrategyIsAsWideAsPairsOfRowsSay) {
  ValidationTable table{.name = "one"};
  table.rows = {row(100, 100, false, "", "a"), row(100, 110, false, "", "a"), row(100, 121, false, "", "b"),
                row(100, 100, false, "", "b"), row(100, 300, false, "", "a")};
  for (std::size_t i = 0; i < 4; ++i) table.rows[i].strategy = i % 2 == 0 ? "ring" : "zigzag";
  table.rows[4].strategy = "ring", table.rows[4].oddity = "odd";
  const std::vector<WidthCheck> checks = width_checks({table});
  ASSERT_FALSE(checks.empty());
  EXPECT_EQ(checks[0].residuals, 2);
  EXPECT_NEAR(checks[0].measured, 1.5 * std::log(1.1) / 0.6745 / std::sqrt(2.0), 1e-3);
}

void targets_are_met_or_the_miss_is_explained(const Accuracy& found) {
  for (const ValidationTable& table : found.tables) {
    EXPECT_GT(table.summary(false).rows, 0) << table.name;
    EXPECT_EQ(table.within_target(), table.miss_reason.empty())  // nor does a reason outlive its miss
        << table.name << ": " << table.summary(false).median << " " << table.summary(false).p90;
    EXPECT_TRUE(table.target_median > 0 || table.target_p90 > 0 || table.target_worst > 0) << table.name;
    for (const ValidationRow& each : table.rows) {
      EXPECT_TRUE(std::isfinite(each.predicted) && each.predicted > 0) << table.name << ": " << each.what;
      if (!each.has_interval()) continue;
      EXPECT_TRUE(each.low < each.predicted && each.predicted < each.high) << table.name << ": " << each.what;
    }
  }
}

void intervals_hold_eight_in_ten(const Accuracy& found) {
  const CoverageSummary coverage = coverage_of(found.tables);
  EXPECT_GT(coverage.rows, 3000);
  EXPECT_GE(coverage.share(), 0.75);
  EXPECT_LE(coverage.share(), 0.85);
}

void what_is_chosen_costs_little(const Accuracy& found) {
  const OrderingSummary order = orderings_of(found.tables);
  EXPECT_GT(order.grids, 50);
  EXPECT_LE(order.median_regret, 0.03);
  EXPECT_LE(order.mean_regret, 0.10);
}

void widths_are_what_their_residuals_say(const Accuracy& found) {
  for (const WidthCheck& width : found.widths) {
    EXPECT_GE(width.residuals, 4) << width.name;
    EXPECT_GE(width.in_use, width.least - 0.01) << width.name;
    EXPECT_LE(width.in_use, width.most + 0.01) << width.name;
  }
}

// CP_UPDATE_GOLDEN=1 writes it anew, as `cpsim validate --markdown docs/accuracy.md` does.
void the_page_is_what_the_command_writes(const Accuracy& found) {
  EXPECT_EQ(testing::compare_with_golden("../../docs/accuracy.md", accuracy_page(found)), "");
}

void the_readme_has_its_lines(const Accuracy& found) {
  std::ifstream in("README.md");
  const std::string readme{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  ASSERT_FALSE(readme.empty());
  for (const std::string& line : accuracy_lines(found)) EXPECT_THAT(readme, ::testing::HasSubstr(line));
}

// The whole of `cpsim validate`; it takes seconds, so that all which is said of it is one test.
TEST(Validated, AllHolds) {
  const Accuracy found = accuracy(num_cores());
  targets_are_met_or_the_miss_is_explained(found);
  intervals_hold_eight_in_ten(found);
  what_is_chosen_costs_little(found);
  widths_are_what_their_residuals_say(found);
  the_page_is_what_the_command_writes(found);
  the_readme_has_its_lines(found);
}

TEST(AccuracyPage, PercentagesKeepTheirSignAndZeroHasNone) {
  EXPECT_EQ(signed_percent_text(-0.123), "-12.3 %");
  EXPECT_EQ(signed_percent_text(0.123), "+12.3 %");
  EXPECT_EQ(signed_percent_text(-0.0001), "0.0 %");
}

}  // namespace
}  // namespace cp::sim
