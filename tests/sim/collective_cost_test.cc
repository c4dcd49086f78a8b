// Collectives by algebra and by what was measured.
#include "sim/timeline/collective_cost.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/cluster/read_cluster.h"
#include "tests/sim/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using testing::round_cluster;

std::vector<Rank> first(int gpus) {
  std::vector<Rank> ranks(static_cast<std::size_t>(gpus));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                     CollectiveKind::all_reduce, CollectiveKind::all_to_all,
                                     CollectiveKind::broadcast,  CollectiveKind::send_recv};

TEST(Spread, CountsNodesAndTheFewestOnOne) {
  const Cluster cluster = round_cluster(4);  // two GPUs a node
  const std::vector<Rank> gpus = {0, 1, 2, 6, 7};
  const Spread spread = spread_of(gpus, cluster);
  EXPECT_EQ(spread.gpus, 5);
  EXPECT_EQ(spread.nodes, 3);
  EXPECT_EQ(spread.fewest_on_a_node, 1);
}

// Over two GPUs of one node: each sends half of an all-gather's bytes, at 0.75 of 100 GB/s, after NCCL's latencies.
TEST(CollectiveModel, TwoGpusByHand) {
  const auto choices = collective_choices(CollectiveKind::all_gather, {2, 1, 2}, round_cluster());
  ASSERT_EQ(choices.size(), 3U) << "a ring by LL, LL128 and Simple";
  EXPECT_NEAR(choices[2].us(1e6), 8.4 + 3.4 + 0.5e6 / 75e3, 1e-9);
  EXPECT_NEAR(choices[1].us(1e6), 14.0 + 1.9 + 0.5e6 / (0.92 * 75e3), 1e-9);
  EXPECT_NEAR(choices[0].us(1e6), 6.6 + 0.6 + 0.5e6 / 31e3, 1e-9);
  EXPECT_EQ(fastest(choices, 1024).protocol, Protocol::ll);
  EXPECT_EQ(fastest(choices, 1e9).protocol, Protocol::simple);
}

TEST(CollectiveModel, NodesAreCrossedByAllNics) {
  // Two nodes of two GPUs: 2 x 7.5 GB/s leave each node, and bound the ring.
  const auto choices = collective_choices(CollectiveKind::reduce_scatter, {4, 2, 2}, round_cluster());
  EXPECT_NEAR(choices[2].us(1e9), 8.4 + 2 * 3.4 + 14 + 0.75e9 / 15e3, 1e-6);
}

TEST(CollectiveModel, ReductionsInTheSwitchHalveWhatGpusSend) {
  Cluster cluster = round_cluster();
  cluster.node.nvls = true;
  CollectiveSettings settings;
  const Spread spread{2, 1, 2};
  EXPECT_EQ(fastest(collective_choices(CollectiveKind::all_reduce, spread, cluster, settings), 64).algorithm,
            Algorithm::ring);
  cluster.node.gpus = cluster.node.nvlink_domain = 8;
  const Spread eight{8, 1, 8};
  EXPECT_EQ(fastest(collective_choices(CollectiveKind::all_reduce, eight, cluster, settings), 1e9).algorithm,
            Algorithm::nvls);
  settings.nvls = false;
  EXPECT_NE(fastest(collective_choices(CollectiveKind::all_reduce, eight, cluster, settings), 1e9).algorithm,
            Algorithm::nvls);
}

TEST(CollectiveModel, OnePairAcrossNodesHasOneNicsRateAndItsChannels) {
  Cluster cluster = round_cluster();
  cluster.network.nic_gbps = 100;
  CollectiveSettings settings;
  const auto gbps = [&](int channels) {
    settings.channels_per_net_peer = channels;
    return fastest(collective_choices(CollectiveKind::send_recv, {2, 2, 1}, cluster, settings), 1e9)
        .algorithm_gbps;
  };
  EXPECT_NEAR(gbps(2), 19.6, 1e-9);
  EXPECT_NEAR(gbps(4), 39.2, 1e-9);
  EXPECT_NEAR(gbps(100), 75, 1e-9);
}

TEST(CollectiveCost, MeasuredCurvesComeFirst) {
  const Cluster cluster = find_cluster("hgx-b200", 2);
  EXPECT_NEAR(collective_ns(CollectiveKind::all_gather, 1 << 30, first(16), cluster), 3360.46e3, 1e3);
  EXPECT_NEAR(collective_ns(CollectiveKind::all_gather, 1 << 30, first(8), cluster), 1486.06e3, 1e3);
  EXPECT_EQ(collective_ns(CollectiveKind::all_gather, 1 << 30, first(1), cluster), 0);
}

TEST(CollectiveCost, BetweenMeasuredSizesALatencyAndARate) {
  const Curve curve({{1000, 10}, {3000, 20}, {5000, 50}});
  EXPECT_DOUBLE_EQ(along_us(curve, 10), 10);
  EXPECT_DOUBLE_EQ(along_us(curve, 1000), 10);
  EXPECT_DOUBLE_EQ(along_us(curve, 2000), 15);
  EXPECT_DOUBLE_EQ(along_us(curve, 4000), 35);
  EXPECT_DOUBLE_EQ(along_us(curve, 7000), 80);
  EXPECT_DOUBLE_EQ(along_us(Curve({{1000, 10}}), 2000), 20);
}

RC_GTEST_PROP(CollectiveModel, TimesGrowWithBytesAndShrinkWithRates, ()) {
  Cluster cluster = round_cluster(8);
  cluster.node.nvls = pick("cluster.node.nvls", rc::gen::arbitrary<bool>());
  cluster.network.latency_us = pick("cluster.network.latency_us", rc::gen::inRange(0, 20));
  const int nodes = pick("nodes", rc::gen::inRange(1, 9)), each = pick("each", rc::gen::inRange(1, 3));
  RC_PRE(nodes * each > 1);
  const Spread spread{nodes * each, nodes, each};
  const CollectiveKind kind =
      pick("kind", rc::gen::elementOf(std::vector<CollectiveKind>(std::begin(kKinds), std::end(kKinds))));
  const double bytes = pick("bytes", rc::gen::inRange(1, 1 << 30));
  const auto us = [&](double size) {
    return fastest(collective_choices(kind, spread, cluster), size).us(size);
  };
  const double once = us(bytes);
  RC_ASSERT(us(2 * bytes) > once);
  RC_ASSERT(us(2 * bytes) < 2 * once + 1e-9);
  cluster.node.nvlink_gbps *= 2, cluster.network.nic_gbps *= 2;
  RC_ASSERT(us(bytes) <= once);
  const double near = us(bytes);
  cluster.network.latency_us += 5;
  RC_ASSERT(us(bytes) >= near);
}

}  // namespace
}  // namespace cp::sim
