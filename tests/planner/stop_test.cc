// A stop reaches work of shared/, which knows none.
#include "sim/base/stop.h"

#include <numeric>

#include <gtest/gtest.h>

#include "shared/context_parallel/attention_plan.h"

namespace cp::sim {
namespace {

AttentionRequest ring_of(int ranks) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len = 4096;
  request.problem.causal = true;
  request.ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

TEST(Stop, EndsThePlanningOfAttention) {
  const AttentionRequest request = ring_of(4);
  std::atomic<bool> stop = false;
  {
    const StopScope scope(&stop);
    EXPECT_EQ(attention_plans(request, AttentionPass::forward, host_target()).size(), 4U);
    stop = true;
    EXPECT_THROW(attention_plans(request, AttentionPass::forward, host_target()), Stopped);
    {
      const StopScope none(nullptr);  // leaves what there is
      EXPECT_THROW(attention_plans(request, AttentionPass::forward, host_target()), Stopped);
    }
    std::atomic<bool> other = false;
    const StopScope inner(&other);
    EXPECT_EQ(attention_plans(request, AttentionPass::forward, host_target()).size(), 4U);
  }
  EXPECT_EQ(attention_plans(request, AttentionPass::forward, host_target()).size(), 4U);
}

}  // namespace
}  // namespace cp::sim
