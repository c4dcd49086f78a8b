// One rank alone against all ranks, of attention by each strategy.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/rank_replay.h"
#include "sim/cost/timeline/timeline.h"
#include "tests/cost/rank_plans.h"
#include "tests/cost/timeline_cluster.h"

namespace cp::sim {
namespace {

using testing::kExact;
using testing::parts_ns;

// Attention where all ranks do the same at the same time, or a little less of it than the one that does most:
// what rank_replay.h leaves out does not happen here, so that only rounding differs.
class Attention : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Attention,
                         ::testing::Values(std::pair("ring", "head_tail"), std::pair("ring", "striped"),
                                           std::pair("ulysses", "contiguous"),
                                           std::pair("all_gather", "head_tail"),
                                           std::pair("pass_q", "head_tail"),
                                           std::pair("ulysses_ring", "head_tail")));

AttentionRequest request_of(const std::pair<const char*, const char*>& strategy, int cp,
                            std::int64_t seq_len) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = seq_len;
  request.problem.q_heads = 32, request.problem.kv_heads = 16;
  request.problem.head_dim = request.problem.v_head_dim = 128;
  request.problem.dtype = DType::bf16;
  request.problem.causal = true;
  request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  request.strategy = named_strategy({strategy.first, {}, {}}, request.problem, cp);
  request.strategy.balance = parse_balance(strategy.second);
  return request;
}

double slowest_ns(const std::vector<Plan>& plans, const Cluster& cluster, const SoftwareProfile& software) {
  double most = 0;
  for (const Plan& plan : plans) {
    const StepClock clock = replay_rank(plan, cluster, software);
    EXPECT_NEAR(parts_ns(clock), clock.time_ns, kExact * clock.time_ns);
    EXPECT_NEAR(clock.path.sum(), clock.time_ns, kExact * clock.time_ns);
    most = std::max(most, clock.time_ns);
  }
  return most;
}

void expect_equal(const std::vector<Plan>& plans, const Cluster& cluster, const SoftwareProfile& software,
                  const std::string& what) {
  const double all = replay(plans, cluster, software).time_ns;
  EXPECT_NEAR(slowest_ns(plans, cluster, software), all, kExact * all) << what;
}

TEST_P(Attention, TakesTheTimeOfAllRanks) {
  SoftwareProfile costly;
  costly.forward_progress = 0.7, costly.backward_progress = 0.8, costly.kernel_issue_us = 5;
  costly.collective_issue_us = 20, costly.transfer_issue_us = 3;
  // Whose kernels take the time of their pairs. By rates, half of the rows against all keys take less than
  // all rows against half of them, so that ranks of a ring wait for one another.
  for (const char* preset : {"a800", "h800"}) {
    for (const int cp : {2, 4, 8, 16}) {
      const Cluster cluster = find_cluster(preset, cp > 8 ? 2 : 1);
      Cluster slowed = cluster;
      slowed.transfer.beside_kernels = 0.8;
      for (const std::int64_t seq_len : {8192, 131072}) {
        for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
          const auto plans = attention_plans(request_of(GetParam(), cp, seq_len), pass);
          const std::string what =
              str(preset, ", cp ", cp, ", ", seq_len, " tokens, pass ", static_cast<int>(pass));
          expect_equal(plans, cluster, {}, what);
          expect_equal(plans, slowed, costly, what + ", where overlap costs");
        }
      }
    }
  }
}

// Without anything that slows something else down the time is the longest of all chains: the one that was
// found is among them, and where all rates change alike it stays the longest.
TEST_P(Attention, NoChainTakesLongerThanTheWhole) {
  const Cluster cluster = find_cluster("h800", 2);
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    for (const std::int64_t seq_len : {8192, 131072}) {
      const Plan plan = attention_plan(request_of(GetParam(), 16, seq_len), pass, 0);
      const StepClock clock = replay_rank(plan, cluster, {});
      RankReplayOptions options;
      options.factors.of.fill(1.25);
      EXPECT_NEAR(replay_rank(plan, cluster, {}, options).time_ns, 1.25 * clock.time_ns,
                  kExact * clock.time_ns);
      double most_named = 0;
      for (std::size_t rate = 0; rate < kNumRates; ++rate) {
        for (const double factor : {0.5, 1.0001, 2.0}) {
          options.factors = {};
          options.factors.of[rate] = factor;
          const StepClock other = replay_rank(plan, cluster, {}, options);
          EXPECT_GE(other.time_ns, options.factors.of_chain(clock.path) * (1 - kExact))
              << name(static_cast<Rate>(rate)) << " " << factor << ", " << seq_len << " tokens";
          EXPECT_NEAR(other.path.sum(), other.time_ns, kExact * other.time_ns);
        }
        most_named = std::max(most_named, clock.path.of[rate]);
      }
      EXPECT_LT(most_named, clock.time_ns) << "several rates matter";
    }
  }
}

}  // namespace
}  // namespace cp::sim
