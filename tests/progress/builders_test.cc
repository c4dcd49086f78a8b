// What the planners write ends in all orders under the rules of every library.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/redistribute/lower.h"
#include "sim/proof/progress/progress.h"
#include "tests/support/layout_generators.h"

namespace cp::sim {
namespace {

std::vector<ProgressRules> rules() {
  std::vector<ProgressRules> rules = all_rules();
  for (const Meeting meeting : {Meeting::transfers, Meeting::peers, Meeting::members}) {
    rules.push_back({.name = str("begin in order, meeting ", static_cast<int>(meeting)),
                     .launch = Launch::begin_in_order,
                     .meeting = meeting});
  }
  // However many transfers a launch takes: those at one distance need those at shorter ones alone to have
  // ended.
  for (const std::int64_t most : {1, 2, 3, 5}) {
    rules.push_back({.name = str(most, " transfers in a launch"),
                     .launch = Launch::one_in_order,
                     .transfers_per_launch = most});
  }
  return rules;
}

void expect_end(const std::vector<Plan>& plans, const std::string& what) {
  for (const ProgressReport& report : explore_progress(plans, rules())) {
    ASSERT_EQ(report.ends, Ends::in_all_orders) << what << "\n" << to_string(report);
    ASSERT_TRUE(report.exhaustive);
    ASSERT_EQ(report.mismatch, "") << what;
  }
}

TEST(ProgressOfBuilders, RandomRedistributionsEnd) {
  int planned = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const auto request = cp::testing::case_of_seed(seed, {.tight = false, .max_ranks = 8});
    const Redistribution redistribution =
        plan_redistribution(request.source, request.target, request.options);
    expect_end(lower_all(redistribution), str("seed ", seed));
    ++planned;
  }
  EXPECT_EQ(planned, 150);
}

TEST(ProgressOfBuilders, AttentionStrategiesEnd) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 40;
  problem.q_heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = problem.v_head_dim = 8;
  problem.causal = true;
  int planned = 0;
  for (const int cp : {2, 4}) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < cp; ++rank) ranks.push_back(rank);
    for (const Strategy& strategy : standard_strategies(problem, cp)) {
      if (refuse(problem, cp, strategy).has_value()) continue;
      const AttentionRequest request{.problem = problem, .ranks = ranks, .strategy = strategy};
      for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
        expect_end(attention_plans(request, pass), to_string(strategy, cp));
        ++planned;
      }
    }
  }
  EXPECT_GT(planned, 40);
}

}  // namespace
}  // namespace cp::sim
