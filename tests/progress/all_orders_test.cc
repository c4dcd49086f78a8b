// Runs with data in every order that can matter.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"
#include "sim/fabric/explore_orders.h"
#include "sim/proof/run/attention_run.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/support/layout_generators.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;

OrdersReport orders_of(const Redistribution& redistribution, const std::vector<Plan>& plans) {
  return explore_orders([&](const BatonOrder& order) {
    RedistributeRunOptions options;
    options.schedule = Schedule::baton;
    options.seed = 3;
    options.order = order;
    return str(run_redistribution(redistribution, plans, options).elements_compared, " elements");
  });
}

// The builder's edges order whatever touches the same bytes: one order stands for all.
TEST(AllOrders, RedistributionsOfThreeRanksHaveOne) {
  int runs = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto request = cp::testing::case_of_seed(seed, {.tight = false, .max_ranks = 3});
    const Redistribution redistribution =
        plan_redistribution(request.source, request.target, request.options);
    const OrdersReport report = orders_of(redistribution, lower_all(redistribution));
    ASSERT_TRUE(report.all) << "seed " << seed << ": " << to_string(report);
    ASSERT_EQ(report.orders, 1) << "seed " << seed << ": " << to_string(report);
    ASSERT_THAT(report.first->result, HasSubstr("elements")) << "seed " << seed;
    ++runs;
  }
  EXPECT_EQ(runs, 60);
}

TEST(AllOrders, AttentionOfThreeRanksHasOne) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 13;
  problem.q_heads = 3;
  problem.kv_heads = 3;
  problem.head_dim = problem.v_head_dim = 4;
  problem.causal = true;
  const AttentionTestData data(problem, 5);
  const int cp = 3;
  int runs = 0;
  for (const Strategy& strategy : standard_strategies(problem, cp)) {
    if (refuse(problem, cp, strategy).has_value()) continue;
    const AttentionRequest request{.problem = problem, .ranks = {0, 1, 2}, .strategy = strategy};
    const OrdersReport report = explore_orders([&](const BatonOrder& order) {
      AttentionRunOptions options;
      options.backward = true;
      options.schedule = Schedule::baton;
      options.order = order;
      return std::string(run_attention(data, request, options).holds() ? "holds" : "does not hold");
    });
    ASSERT_TRUE(report.all) << to_string(strategy, cp) << ": " << to_string(report);
    EXPECT_EQ(report.orders, 1) << to_string(strategy, cp) << ": " << to_string(report);
    EXPECT_EQ(report.first->result, "holds") << to_string(strategy, cp);
    ++runs;
  }
  EXPECT_GT(runs, 8);
}

// Steps of the plan whose edges may be changed, by StepId.
std::vector<Step*> steps_to_change(Plan& plan) {
  std::vector<Step*> steps;
  for (const StepRef& ref : steps_of(plan)) steps.push_back(const_cast<Step*>(ref.step));
  return steps;
}

bool check_finds_no_order(const std::vector<Plan>& plans) {
  try {
    check(plans);
    return false;
  } catch (const CheckFailure& failure) {
    return std::string(failure.what()).find("no edge orders the two") != std::string::npos;
  }
}

// Two ways to find a missing edge: what check() proves of one rank's steps, and whether turns can be taken
// the other way round. check() looks at each rank alone, so it may refuse what the ranks that are met in
// between put in order.
TEST(AllOrders, AMissingEdgeMakesOrdersWhereCheckRefusesThePlans) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 8;
  problem.q_heads = problem.kv_heads = 2;
  problem.head_dim = problem.v_head_dim = 2;
  const int cp = 2;
  int edges = 0, refused = 0, reordered = 0;
  for (const Strategy& strategy : standard_strategies(problem, cp)) {
    if (refuse(problem, cp, strategy).has_value()) continue;
    const AttentionRequest request{.problem = problem, .ranks = {0, 1}, .strategy = strategy};
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      const std::vector<Plan> plans = attention_plans(request, pass);
      const std::size_t steps = steps_of(plans[0]).size();
      for (std::size_t at = 0; at < steps; ++at) {
        for (std::size_t edge = 0; edge < steps_of(plans[0])[at].step->after.size(); ++edge) {
          std::vector<Plan> damaged = plans;
          auto& after = steps_to_change(damaged[0])[at]->after;
          after.erase(after.begin() + static_cast<std::ptrdiff_t>(edge));
          const bool is_refused = check_finds_no_order(damaged);
          const auto run = [&](const BatonOrder& order) {
            Fabric fabric(cp, {.schedule = Schedule::baton, .order = order});
            fabric.run(
                [&](Rank rank, Device& device) { execute(damaged[static_cast<std::size_t>(rank)], device); });
            return std::string();
          };
          const OrdersReport report = explore_orders(run, {.orders = 3});
          if (report.orders > 1) {
            ASSERT_TRUE(is_refused) << to_string(strategy, cp) << " step " << at << " edge " << edge;
          }
          ++edges;
          refused += is_refused ? 1 : 0;
          reordered += report.orders > 1 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(edges, 100);
  EXPECT_GT(reordered, 50);
  RecordProperty("edges", edges);
  RecordProperty("refused", refused);
  RecordProperty("reordered", reordered);
}

}  // namespace
}  // namespace cp::sim
