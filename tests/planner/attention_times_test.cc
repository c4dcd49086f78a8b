#include "sim/planner/search/attention_times.h"

#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "sim/planner/search/layout_space.h"
#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

// All legal layouts that differ in degrees, order or strategy.
std::vector<ParallelLayout> layouts_of(PlanQuestion& question) {
  question.fixed.recompute = Recompute{}, question.fixed.loss_chunks = 1;
  std::vector<ParallelLayout> all;
  const LayoutSpace space(question);
  for (const ParallelLayout& family : space.families()) {
    if (refuse(question.model, question.workload, family)) continue;
    for (const ParallelLayout& layout : space.members(family)) all.push_back(layout);
  }
  return all;
}

void expect_shared_times(PlanQuestion question) {
  struct Known {
    ParallelLayout layout;
    AttentionTimes times;
  };
  std::map<AttentionKey, Known> known;
  int shared = 0;
  for (const ParallelLayout& layout : layouts_of(question)) {
    AttentionTimer timer(question);  // which has replayed nothing yet
    const AttentionTimes& times = timer.of(layout);
    const auto [found, is_new] =
        known.try_emplace(attention_key(layout, question.cluster), Known{layout, times});
    if (is_new) continue;
    ++shared;
    const AttentionTimes& others = found->second.times;
    EXPECT_EQ(times.mean.forward.kernels_ns, others.mean.forward.kernels_ns)
        << to_string(layout) << " and " << to_string(found->second.layout);
    EXPECT_EQ(times.mean.forward.exposed_ns, others.mean.forward.exposed_ns)
        << to_string(layout) << " and " << to_string(found->second.layout);
    EXPECT_EQ(times.mean.backward.kernels_ns, others.mean.backward.kernels_ns)
        << to_string(layout) << " and " << to_string(found->second.layout);
    EXPECT_EQ(times.mean.backward.exposed_ns, others.mean.backward.exposed_ns)
        << to_string(layout) << " and " << to_string(found->second.layout);
  }
  EXPECT_GT(known.size(), 1U);
  EXPECT_GT(shared, 0);
}

TEST(AttentionKey, EqualOnesHaveEqualTimes) {
  PlanQuestion question = testing::small_question(8, 2048, 8);
  question.fixed.sharding = ShardingGroup::dp_shard_cp;
  expect_shared_times(question);
}

// Neighbours four and eight ranks apart are on other nodes alike.
TEST(AttentionKey, BeyondANodeAllDistancesAreEqual) {
  PlanQuestion question = testing::small_question(16, 2048, 16);
  question.fixed.sharding = ShardingGroup::dp_shard_cp, question.fixed.strategy = "ring";
  question.fixed.micro_batch = 1;
  expect_shared_times(question);
  const auto key = [&](const char* layout) {
    return attention_key(parse_parallel_layout(layout), question.cluster);
  };
  EXPECT_EQ(key("tp=2,cp=2,dp_shard=2,pp=2,order=tp-dp-cp-pp"),
            key("tp=2,cp=2,dp_shard=4,order=tp-dp-cp-pp"));
  EXPECT_NE(key("tp=2,cp=2,dp_shard=4,order=tp-dp-cp-pp"), key("tp=2,cp=2,dp_shard=4"));
  EXPECT_NE(key("tp=2,cp=2,dp_shard=4"), key("tp=2,cp=2,dp_shard=4,order=cp-tp-dp-pp"));
}

// In one family, where all else is equal.
// Gradients of keys and values go home behind the last kernel of attention. What comes before it is no part
// of that, nor anything where one rank has all rows.
TEST(AttentionTimes, WhatComesHomeBehindTheKernelsIsAPartOfWhatIsExposed) {
  const PlanQuestion question = testing::small_question(8);
  AttentionTimer timer(question);
  const auto backward = [&](const char* layout) {
    return timer.of(parse_parallel_layout(layout)).of_kinds[0].backward;
  };
  const AttentionTimes::Pass gathered = backward("cp=4,dp_shard=2,strategy=all_gather,balance=head_tail");
  EXPECT_GT(gathered.behind_ns, 0);
  EXPECT_LT(gathered.behind_ns, gathered.exposed_ns);
  EXPECT_EQ(backward("dp_shard=8").behind_ns, 0);
  EXPECT_EQ(timer.of(parse_parallel_layout("cp=4,dp_shard=2,strategy=all_gather,balance=head_tail"))
                .of_kinds[0]
                .forward.behind_ns,
            0);
}

TEST(AttentionKey, DiffersWithTheStrategy) {
  PlanQuestion question = testing::small_question(16, 2048, 16);
  question.fixed.recompute = Recompute{}, question.fixed.loss_chunks = 1;
  const LayoutSpace space(question);
  for (const ParallelLayout& family : space.families()) {
    std::map<AttentionKey, ParallelLayout> known;
    for (const ParallelLayout& layout : space.members(family)) {
      const auto [found, is_new] = known.try_emplace(attention_key(layout, question.cluster), layout);
      EXPECT_TRUE(is_new) << to_string(layout) << " and " << to_string(found->second);
    }
  }
}

// Fields that no search varies today decide, too.
TEST(AttentionKey, HasEveryFieldOfAStrategy) {
  const Cluster cluster = testing::small_question(8, 2048, 8).cluster;
  const ParallelLayout layout = parse_parallel_layout("cp=8,strategy=ring");
  const auto differs = [&](const auto& change) {
    ParallelLayout other = layout;
    change(other.strategy);
    return attention_key(other, cluster) != attention_key(layout, cluster);
  };
  EXPECT_FALSE(differs([](Strategy&) {}));
  EXPECT_TRUE(differs([](Strategy& s) { s.core = Core::pass_q; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.ulysses_degree = 2; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.ulysses_inner = false; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.inner_ring = 2; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.rotation = Strategy::Rotation::all_gather; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.balance.kind = Balance::Kind::striped; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.balance.block = 16; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.balance.per_document = true; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.input_dtype_gradients = true; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.input_dtype_merge = true; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.send_empty = true; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.slots = 3; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.pieces = 2; }));
  EXPECT_TRUE(differs([](Strategy& s) { s.transfers = Strategy::Transfers::copy_engine; }));
}

}  // namespace
}  // namespace cp::sim
