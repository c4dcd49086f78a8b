// Folded replays are the unfolded ones.
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/cores.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "sim/cost/timeline/fold.h"
#include "sim/cost/timeline/timeline.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using testing::round_cluster;

std::vector<Rank> strided(Rank first, int stride, int count) {
  std::vector<Rank> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

// A layer's traffic on 256 GPUs: tensor parallel over 4 neighbours, a ring of 8 in strides of 4, parameters
// gathered over 8 in strides of 32, all under way at once.
Plan layer_plan(Rank self) {
  constexpr int kTp = 4, kCp = 8, kDp = 8;
  const Rank tp = self % kTp, cp = self / kTp % kCp, dp = self / (kTp * kCp);
  PlanBuilder b(self, host_target());
  const GroupId tp_group = b.group("tp", strided(self - tp, 1, kTp));
  const GroupId cp_group = b.group("cp", strided(dp * kTp * kCp + tp, kTp, kCp));
  const GroupId dp_group = b.group("dp", strided(cp * kTp + tp, kTp * kCp, kDp));
  const StreamId compute = b.stream("compute"), tps = b.stream("tp"), cps = b.stream("cp"),
                 dps = b.stream("dp");
  const auto buffer = [&](const char* name, std::int64_t numel) { return b.inout(name, DType::bf16, numel); };
  const BufferId x = buffer("x", 4000), all = buffer("all", 16000), work = buffer("work", 50000);
  const BufferId kv = buffer("kv", 6000), next = buffer("next", 6000);
  const BufferId shard = buffer("shard", 5000), whole = buffer("whole", 40000), sum = buffer("sum", 7000);
  const BufferId out = buffer("out", 50000);
  b.begin_repeat(3);
  b.add(tps, AllGather{tp_group, flat_view(x, 0, 4000), flat_view(all, 0, 16000)});
  b.add(cps, Exchange{cp_group,
                      {{static_cast<std::int32_t>((cp + 1) % kCp), flat_view(kv, 0, 6000)}},
                      {{static_cast<std::int32_t>((cp + kCp - 1) % kCp), flat_view(next, 0, 6000)}},
                      [] {
                        std::vector<Count> counts;
                        for (std::int32_t i = 0; i < kCp; ++i) counts.push_back({i, (i + 1) % kCp, 6000});
                        return counts_digest(counts);
                      }()});
  b.add(dps, AllGather{dp_group, flat_view(shard, 0, 5000), flat_view(whole, 0, 40000)});
  b.add(compute, Copy{flat_view(work, 0, 50000), flat_view(out, 0, 50000)});
  b.add(tps, AllReduce{tp_group, ReduceOp::sum, flat_view(sum, 0, 7000), flat_view(sum, 0, 7000)});
  b.end_repeat();
  return std::move(b).build({});
}

// 32 nodes of 8, in leaves of `nodes_per_leaf`, twice as many ports down as up.
Cluster spine_cluster(int nodes_per_leaf, bool rails) {
  Cluster cluster = round_cluster(32);
  cluster.node.gpus = cluster.node.nvlink_domain = 8;
  cluster.network.nodes_per_leaf = nodes_per_leaf;
  cluster.network.rails = rails;
  cluster.network.oversubscription = 2;
  cluster.network.latency_us = 0.1;
  return cluster;
}

Timeline timed(std::span<const Plan> plans, const Cluster& cluster, Fidelity fidelity) {
  TimelineOptions options;
  options.fidelity = fidelity;
  return replay(plans, cluster, {}, options);
}

TEST(TimelineFold, TensorContextAndDataParallelTogetherOn256Gpus) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 256; ++rank) plans.push_back(layer_plan(rank));
  check(plans);
  for (const int nodes_per_leaf : {4, 8, 32}) {
    for (const bool rails : {true, false}) {
      const Cluster cluster = spine_cluster(nodes_per_leaf, rails);
      const Timeline all = timed(plans, cluster, Fidelity::simulated);
      const Timeline folded = timed(plans, cluster, Fidelity::folded);
      EXPECT_EQ(all.stands_for, 1);
      EXPECT_EQ(folded.stands_for, nodes_per_leaf == 32 ? 8 : 32 / nodes_per_leaf) << nodes_per_leaf << rails;
      EXPECT_NEAR(folded.time_ns, all.time_ns, 1e-9 * all.time_ns)
          << nodes_per_leaf << " nodes a leaf, rails " << rails;
      for (const RankTimeline& rank : folded.ranks) {
        const RankTimeline& same = all.ranks[static_cast<std::size_t>(rank.rank)];
        EXPECT_NEAR(rank.exposed_comm_ns, same.exposed_comm_ns, 1e-9 * all.time_ns);
        EXPECT_NEAR(rank.compute_ns, same.compute_ns, 1e-9 * all.time_ns);
        EXPECT_EQ(rank.bytes_received, same.bytes_received);
      }
    }
  }
}

TEST(TimelineFold, WhatDiffersIsNotFolded) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 256; ++rank) plans.push_back(layer_plan(rank));
  const Cluster cluster = spine_cluster(4, true);
  EXPECT_EQ(find_fold(plans, cluster).block, 32);
  auto& repeat = std::get<Repeat>(plans[77].segments.front());
  repeat.count = 4;
  EXPECT_FALSE(find_fold(plans, cluster).folded());
  EXPECT_FALSE(find_fold(std::span(plans).first(128), cluster).folded()) << "not all GPUs of the cluster";
}

TEST(TimelineFold, GroupsAndTheirShifts) {
  const Fold fold{16, 4};
  EXPECT_EQ(period({0, 4, 8, 12}, fold), 1);
  EXPECT_EQ(period({1, 9}, fold), 2);
  EXPECT_EQ(period({1, 2}, fold), 4);
  EXPECT_EQ(orbit_key({5, 6}, fold), (std::vector<Rank>{1, 2}));
  EXPECT_EQ(orbit_key({13, 1}, fold), orbit_key({5, 9}, fold));
  EXPECT_EQ(fold.representative(14), 2);
  EXPECT_EQ(fold.shifted(3, 14, 2), 7)
      << "three from where 14 is, seen from 2: twelve ranks back, around the end";
}

// Any attention on a mesh that fills the cluster: folded where it can be, and never another time.
RC_GTEST_PROP(TimelineFold, AnyAttentionTakesTheSameTime, ()) {
  AttentionRequest request;
  request.problem.q_len = request.problem.kv_len =
      pick("request.problem.kv_len", rc::gen::element(64, 128, 96, 61));
  request.problem.q_heads = 16, request.problem.kv_heads = 16;
  request.problem.head_dim = request.problem.v_head_dim = 4;
  request.problem.causal = pick("request.problem.causal", rc::gen::arbitrary<bool>());
  const int nodes = pick("nodes", rc::gen::element(2, 4, 8));
  request.ranks.resize(static_cast<std::size_t>(2 * nodes));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  std::vector<Core> cores;
  for (const CoreFacts* core : all_cores()) cores.push_back(core->core);
  request.strategy.core = pick("request.strategy.core", rc::gen::elementOf(cores));
  request.strategy.ulysses_degree = pick("request.strategy.ulysses_degree", rc::gen::element(1, 2, 4));
  request.strategy.ulysses_inner = pick("request.strategy.ulysses_inner", rc::gen::arbitrary<bool>());
  request.strategy.send_empty = pick("request.strategy.send_empty", rc::gen::arbitrary<bool>());
  request.strategy.balance =
      parse_balance(pick("balance", rc::gen::element<std::string>("contiguous", "head_tail", "striped")));
  const AttentionPass pass = pick("pass", rc::gen::element(AttentionPass::forward, AttentionPass::backward));
  Cluster cluster = round_cluster(nodes);
  cluster.network.nodes_per_leaf = pick("cluster.network.nodes_per_leaf", rc::gen::element(1, 2, 8));
  cluster.network.oversubscription = 2;
  cluster.network.gpus_per_nic = pick("cluster.network.gpus_per_nic", rc::gen::element(1, 2));
  const auto plans = attention_plans(request, pass);
  const Timeline folded = timed(plans, cluster, Fidelity::folded),
                 all = timed(plans, cluster, Fidelity::simulated);
  RC_CLASSIFY(folded.stands_for > 1, "folded");
  RC_LOG() << to_string(request.strategy) << " " << folded.stands_for << "\n";
  RC_ASSERT(std::abs(folded.time_ns - all.time_ns) <= 1e-9 * all.time_ns);
}

}  // namespace
}  // namespace cp::sim
