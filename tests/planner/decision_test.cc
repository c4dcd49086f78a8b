// Choices among layouts whose best is known by algebra.
#include "sim/planner/search/decision.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace cp::sim {
namespace {

Option option(double attention_us, double network_us, int kind = 0) {
  RateTimes chain;
  chain[Rate::attention_forward] = attention_us, chain[Rate::network] = network_us;
  return {{chain}, kind, 0, 0.5};
}

Doubt doubt_of(double attention, double network) {
  Doubt doubt;
  doubt[Rate::attention_forward] = attention, doubt[Rate::network] = network;
  return doubt;
}

double sum_of_chances(const Decision& decision) {
  double sum = 0;
  for (const Choice& choice : decision.choices) sum += choice.chance;
  return sum;
}

TEST(Decision, OfNothingThereIsNone) { EXPECT_TRUE(decide({}, {}).choices.empty()); }

TEST(Decision, WithoutDoubtTheFastestIsCertain) {
  const std::vector<Option> options = {option(100, 5), option(100, 4), option(100, 6)};
  const Decision decision = decide(options, {});
  EXPECT_EQ(decision.best, 1U);
  EXPECT_NEAR(decision.choices[1].chance, 1, 1e-9);
  EXPECT_NEAR(decision.choices[0].regret_us, 1, 1e-9);
  EXPECT_NEAR(decision.choices[0].low_us, 105, 1e-9);
  EXPECT_NEAR(decision.choices[0].high_us, 105, 1e-9);
  EXPECT_EQ(decision.trying, std::vector<std::size_t>{1});
}

// Both hang on attention alone: however unsure it is, the one with less of it is the faster.
TEST(Decision, ACommonErrorTellsNothingApart) {
  const Decision decision = decide(std::vector{option(150, 1), option(100, 1)}, doubt_of(0.5, 0));
  EXPECT_EQ(decision.best, 1U);
  EXPECT_NEAR(decision.choices[1].chance, 1, 1e-9);
  EXPECT_GT(decision.choices[0].low_us, 50);
  EXPECT_LT(decision.choices[0].low_us, 100) << "its own interval reaches far below the other's time";
  EXPECT_NEAR(decision.worths[0].us, 0, 1e-9) << "to measure attention changes nothing";
}

// The logarithm of the one's time over the other's is normal: with as much doubt of both, and medians that
// differ by one standard deviation of the difference, the slower one wins in 15.87 % of all cases.
TEST(Decision, ChancesAreThoseOfTheNormalDistribution) {
  const double sigma = 0.1, apart = std::exp(sigma * std::sqrt(2.0));
  const std::vector<Option> options = {option(100, 0), option(0, 100 * apart)};
  const Decision decision = decide(options, doubt_of(sigma, sigma), 20000);
  EXPECT_EQ(decision.best, 0U);
  EXPECT_NEAR(decision.choices[1].chance, 0.1587, 0.01);
  EXPECT_NEAR(sum_of_chances(decision), 1, 1e-9);
  // Nine times in ten: 100 e^(1.2816 sigma).
  EXPECT_NEAR(decision.choices[0].high_us, 113.67, 0.1);
  EXPECT_NEAR(decision.choices[0].low_us, 87.97, 0.1);
  EXPECT_EQ(decision.trying, std::vector<std::size_t>{0}) << "one kind";
  const Comparison comparison = compare(options[1], options[0], doubt_of(sigma, sigma), 20000);
  EXPECT_NEAR(comparison.slower, 1 - 0.1587, 0.01);
  EXPECT_NEAR(comparison.low, apart * std::exp(-1.2816 * sigma * std::sqrt(2.0)), 0.01);
  EXPECT_NEAR(comparison.high, apart * std::exp(1.2816 * sigma * std::sqrt(2.0)), 0.01);
}

// A ring hides its transfers until they take longer than attention.
TEST(Decision, TheLongestChainCounts) {
  Option ring = option(100, 0);
  ring.chains.push_back(option(10, 95).chains.front());
  const Decision decision = decide(std::vector{ring}, doubt_of(0, 0.2));
  EXPECT_NEAR(decision.choices[0].low_us, 100, 1e-9);
  EXPECT_NEAR(decision.choices[0].high_us, 10 + 95 * std::exp(0.2 * 1.2816), 0.5);
}

// One hangs on the network and is believed to be somewhat slower: to know the network settles the choice, to
// know attention does not.
TEST(Decision, TheMeasurementThatChangesTheChoiceIsWorthMost) {
  const std::vector<Option> options = {option(100, 10), option(60, 55)};
  const Decision decision = decide(options, doubt_of(0.01, 0.3), 20000);
  EXPECT_EQ(decision.best, 0U);
  EXPECT_EQ(decision.worths.front().rate, Rate::network);
  // All that is to be regretted comes of the network.
  EXPECT_NEAR(decision.worths.front().us, decision.choices[0].regret_us,
              0.15 * decision.choices[0].regret_us);
  EXPECT_LT(decision.worths[1].us, 0.05 * decision.worths[0].us);
}

// Of kinds that are alike in all rates nobody knows which is the fastest.
TEST(Decision, WhatTheModelGetsWrongTellsNobodyApart) {
  Doubt doubt = doubt_of(0.1, 0.1);
  doubt.of_kind = 0.02;
  const Decision decision =
      decide(std::vector{option(100, 10), option(100.01, 10, 1), option(100.02, 10, 2)}, doubt, 5000);
  for (const Choice& choice : decision.choices) EXPECT_NEAR(choice.chance, 1.0 / 3, 0.05);
  // One kind errs as a whole.
  doubt.of_kind = 0.05;
  const Decision kinds =
      decide(std::vector{option(100, 10), option(101, 10), option(100, 10, 1)}, doubt, 5000);
  EXPECT_EQ(kinds.choices[1].chance, 0) << "it has the first one's error";
  EXPECT_NEAR(kinds.choices[2].chance, 0.5, 0.05);
  EXPECT_NEAR(kinds.choices[1].chance_of_kind, 0.5, 0.05);
  EXPECT_EQ(kinds.trying.size(), 2U);
}

// All that is unknown is the strategies' error: to know it takes the whole regret away.
TEST(Decision, TheStrategiesThemselvesCanBeWhatIsUnknown) {
  Doubt doubt = doubt_of(0.2, 0);
  doubt.of_strategy = 0.1;
  std::vector<Option> options = {option(100, 0), option(101, 0, 1)};
  options[1].strategy = 1;
  const Decision decision = decide(options, doubt, 20000);
  EXPECT_GT(decision.strategies_us, 1);
  EXPECT_NEAR(decision.strategies_us, decision.choices[0].regret_us, 0.05 * decision.choices[0].regret_us);
  EXPECT_LT(decision.worths.front().us, 0.1 * decision.strategies_us);
}

// The error of a strategy is one of attention's time: of half of the time here.
TEST(Decision, AStrategysErrorIsOfItsPart) {
  Doubt doubt;
  doubt.of_strategy = 0.2;
  std::vector<Option> options = {option(100, 0), option(100, 0, 1)};
  EXPECT_NEAR(decide(options, doubt, 5000).choices[0].high_us, 100 * std::exp(0.1 * 1.2816), 0.1);
  EXPECT_NEAR(compare(options[0], options[1], doubt, 5000).high, 1, 1e-9) << "by the same strategy";
  options[1].strategy = 1;
  EXPECT_NEAR(compare(options[0], options[1], doubt, 20000).high, std::exp(0.1 * std::sqrt(2.0) * 1.2816),
              0.01);
}

TEST(Decision, IsTheSameAtEachCall) {
  const std::vector<Option> options = {option(100, 10), option(60, 55), option(80, 30, 1)};
  Doubt doubt = doubt_of(0.1, 0.3);
  doubt.of_kind = doubt.of_strategy = 0.02, doubt.of_all = 0.1;
  const Decision one = decide(options, doubt), other = decide(options, doubt);
  for (std::size_t i = 0; i < options.size(); ++i) {
    EXPECT_EQ(one.choices[i].chance, other.choices[i].chance);
    EXPECT_EQ(one.choices[i].high_us, other.choices[i].high_us);
  }
}

}  // namespace
}  // namespace cp::sim
