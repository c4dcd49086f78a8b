#include "sim/planner/search/sensitivity.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/planner/search/evaluate.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An answer whose best layouts are these; only what sensitivity_of reads.
PlanAnswer answer_of(const PlanQuestion& question, const std::vector<std::string>& layouts) {
  PlanAnswer answer;
  answer.question = question;
  for (const std::string& layout : layouts) {
    Candidate candidate;
    candidate.layout = parse_parallel_layout(layout, question.cluster.num_gpus());
    answer.best.push_back(candidate);
  }
  return answer;
}

// By "attention 0.9": the time of the layout over that with the rates as they are.
std::map<std::string, double> reactions(const Sensitivity& sensitivity, std::size_t layout) {
  std::map<std::string, double> ratios;
  for (const Changed& changed : sensitivity.changes)
    ratios[str(changed.rate, " ", changed.factor)] = changed.step_us[layout] / sensitivity.step_us[layout];
  return ratios;
}

TEST(Sensitivity, LongSequencesReactToAttention) {
  PlanQuestion question = testing::training_question("llama-3.1-8b", 1, 1 << 20, 1);
  const Sensitivity sensitivity =
      sensitivity_of(answer_of(question, {"cp=8,strategy=ring,balance=head_tail,recompute=full"}));
  const auto ratio = reactions(sensitivity, 0);
  // Attention is more than 0.8 of the step, and no more than all of it.
  EXPECT_GT(ratio.at("attention 0.9"), 1 + 0.8 * (1 / 0.9 - 1));
  EXPECT_LE(ratio.at("attention 0.9"), 1 / 0.9 + 1e-9);
  EXPECT_LT(ratio.at("attention 1.1"), 1 - 0.8 * (1 - 1 / 1.1));
  for (const char* other : {"products", "memory", "NVLink", "network", "latency"})
    EXPECT_LT(ratio.at(str(other, " 0.9")), ratio.at("attention 0.9")) << other;
  EXPECT_EQ(ratio.at("network 0.9"), 1);  // one node
}

void expect_monotone(const Sensitivity& sensitivity, std::set<std::string>& reacted) {
  ASSERT_EQ(sensitivity.changes.size(), 16U);
  for (const Changed& changed : sensitivity.changes) {
    for (std::size_t i = 0; i < sensitivity.layouts.size(); ++i) {
      const double ratio = changed.step_us[i] / sensitivity.step_us[i];
      // No time grows by more than the rate falls, nor the other way round.
      EXPECT_LE(std::max(ratio, 1 / ratio), std::max(1 / changed.factor, changed.factor) + 1e-9)
          << changed.rate;
      const double slower = changed.factor < 1 ? ratio : 1 / ratio;
      EXPECT_GE(slower, 1 - 1e-12) << changed.rate;
      if (ratio != 1) reacted.insert(changed.rate);
    }
    EXPECT_EQ(changed.step_us[static_cast<std::size_t>(changed.best)],
              *std::min_element(changed.step_us.begin(), changed.step_us.end()));
  }
}

TEST(Sensitivity, NothingIsFasterWhenARateIsSlower) {
  std::set<std::string> reacted;
  expect_monotone(
      sensitivity_of(answer_of(testing::small_question(8),
                               {"tp=4,dp_shard=2", "cp=8,strategy=ring", "dp_shard=8", "pp=2,tp=4"})),
      reacted);
  EXPECT_EQ(reacted.size(), 6U) << "the host of cprun costs nothing, and nothing is in its memory";
  PlanQuestion offloads = testing::small_question(8);
  offloads.workload.optimizer = parse_optimizer("adamw:offload");
  expect_monotone(sensitivity_of(answer_of(offloads, {"dp_shard=8", "tp=4,dp_shard=2"})), reacted);
  EXPECT_TRUE(reacted.contains("host memory"));
  // Nodes whose collectives were measured.
  for (const int nodes : {1, 2}) {
    const PlanQuestion question = testing::training_question("llama-3.1-8b", nodes, 8192, 16);
    expect_monotone(sensitivity_of(answer_of(question, {"tp=8", str("dp_shard=", 8 * nodes)})), reacted);
  }
}

// Without curves kernels run at a share of the peak, and that share changes.
TEST(Sensitivity, RatesThatNobodyMeasuredCountToo) {
  PlanQuestion question = testing::small_question(8, 65536);
  question.cluster.attention.clear();
  question.cluster.matmul_efficiency = question.cluster.fp8_efficiency = Curve();
  const auto ratio = reactions(sensitivity_of(answer_of(question, {"cp=8,strategy=ring"})), 0);
  EXPECT_GT(ratio.at("attention 0.9"), 1.01);
  EXPECT_LT(ratio.at("attention 1.1"), 0.99);
  EXPECT_GT(ratio.at("products 0.9"), 1.001);
}

// Tensor parallelism waits for nothing but collectives that were measured on this cluster.
TEST(Sensitivity, MeasuredCollectivesFollowTheirLinks) {
  PlanQuestion question = testing::training_question("llama-3.1-8b", 1, 8192, 8);
  question.cluster = find_cluster("hgx-b200", 1);
  const auto ratio = reactions(sensitivity_of(answer_of(question, {"tp=8"})), 0);
  const Candidate step = Evaluator(question).evaluate(parse_parallel_layout("tp=8", 8));
  // What hides behind kernels may come to light as well.
  EXPECT_GE(ratio.at("NVLink 0.9"), 1 + (1 / 0.9 - 1) * step.exposed_us / step.step_us - 1e-12);
  EXPECT_LT(ratio.at("NVLink 0.9"), 1 / 0.9);
  EXPECT_EQ(ratio.at("network 0.9"), 1);
}

TEST(Sensitivity, OfTheFirstOnes) {
  const PlanAnswer answer =
      answer_of(testing::small_question(8), {"tp=4,dp_shard=2", "dp_shard=8", "cp=8,strategy=ring"});
  EXPECT_EQ(sensitivity_of(answer, 2).layouts.size(), 2U);
  EXPECT_EQ(sensitivity_of(answer).layouts.size(), 3U);
}

// What is a tie's width behind in the answer's order is no other choice, whatever rate changes.
TEST(Sensitivity, TheFirstOfATieStaysTheBest) {
  const Sensitivity tied = sensitivity_of(
      answer_of(testing::small_question(8, 65536), {"dp_shard=8,loss_chunks=4", "dp_shard=8"}));
  ASSERT_LT(tied.step_us[1], tied.step_us[0]);
  ASSERT_LT(tied.step_us[0], 1.005 * tied.step_us[1]);
  EXPECT_TRUE(tied.robust());
}

// ---- experiments ----

// Two layouts; slower attention makes the second one the best, and a slower network the third.
Sensitivity tied() {
  Sensitivity tied;
  for (const int tp : {1, 2, 4}) {
    ParallelLayout layout;
    layout.tp = tp;
    tied.layouts.push_back(layout);
  }
  tied.step_us = {1000, 1010, 1015};
  tied.changes = {{"attention", 0.9, {1100, 1020, 1105}, 1},
                  {"products", 0.9, {1005, 1015, 1020}, 0},
                  {"network", 0.9, {1090, 1100, 1016}, 2}};
  return tied;
}

TEST(NextExperiments, EachRunTellsApartWhatItSays) {
  const Sensitivity sensitivity = tied();
  EXPECT_FALSE(sensitivity.robust());
  const auto experiments = next_experiments(sensitivity);
  // Open: attention and network, each against what stays with the first layout (two states), and against each
  // other. The second layout tells the network from all others, the third attention from all others, and the
  // first both from what stays.
  ASSERT_EQ(experiments.size(), 2U);
  EXPECT_EQ(experiments[0].layout.tp, 1);
  EXPECT_DOUBLE_EQ(experiments[0].separates, 4.0 / 5);
  EXPECT_EQ(experiments[0].settles, "1 ms means rates as they are, 1.1 ms attention 10 % slower");
  EXPECT_EQ(experiments[0].expected_us, 1000);
  EXPECT_DOUBLE_EQ(experiments[1].separates, 1);
  EXPECT_THAT(experiments[1].settles, HasSubstr("attention 10 % slower"));
  EXPECT_THAT(experiments[1].settles, HasSubstr("network 10 % slower"));
}

TEST(NextExperiments, NoiseHidesSmallDifferences) { EXPECT_THAT(next_experiments(tied(), 0.2), IsEmpty()); }

TEST(NextExperiments, NoneWhereTheBestStaysTheBest) {
  Sensitivity sensitivity = tied();
  for (Changed& changed : sensitivity.changes) changed.best = 0;
  EXPECT_TRUE(sensitivity.robust());
  EXPECT_THAT(next_experiments(sensitivity), IsEmpty());
}

TEST(NextExperiments, AreThreeAtMost) {
  // Each of six layouts is the best under a change of its own, and tells that change alone from the others.
  Sensitivity many;
  for (int i = 0; i < 6; ++i) {
    ParallelLayout layout;
    layout.dp_shard = 1 << i;
    many.layouts.push_back(layout);
    many.step_us.push_back(1000 + i);
  }
  for (int i = 0; i < 6; ++i) {
    Changed changed{str("rate ", i), 0.9, many.step_us, i};
    changed.step_us[static_cast<std::size_t>(i)] = 900;
    many.changes.push_back(changed);
  }
  const auto experiments = next_experiments(many);
  EXPECT_EQ(experiments.size(), 3U);
  std::set<int> runs;
  for (const Experiment& experiment : experiments) runs.insert(experiment.layout.dp_shard);
  EXPECT_EQ(runs.size(), 3U);
}

}  // namespace
}  // namespace cp::sim
