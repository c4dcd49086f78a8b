// Collectives by algebra and by what was measured.
#include "sim/cost/timeline/collective_cost.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/cost/cluster/read_cluster.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using testing::first_ranks;
using testing::round_cluster;

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

// Trays of an NVLink domain are one island; two racks are two.
TEST(Spread, TraysOfADomainAreOneIsland) {
  const Cluster cluster = find_cluster("gb200-nvl72", 36);  // two racks
  EXPECT_EQ(spread_of(first_ranks(8), cluster).nodes, 2);
  EXPECT_EQ(spread_of(first_ranks(8), cluster).islands, 1);
  EXPECT_EQ(spread_of(first_ranks(144), cluster).islands, 2);
  EXPECT_EQ(spread_of(first_ranks(144), cluster).fewest_on_an_island, 72);
  // As fast as if there were no other rack; over two racks the NICs bound it.
  const double gather = 1 << 28;
  EXPECT_EQ(
      collective_ns(CollectiveKind::all_gather, gather, first_ranks(8), cluster),
      collective_ns(CollectiveKind::all_gather, gather, first_ranks(8), find_cluster("gb200-nvl72", 18)));
  const std::vector<Rank> racks = {0, 1, 2, 3, 72, 73, 74, 75};
  EXPECT_GT(collective_ns(CollectiveKind::all_gather, gather, racks, cluster),
            2 * collective_ns(CollectiveKind::all_gather, gather, first_ranks(8), cluster));
}

// Over two GPUs of one node, whose smallest send/recv takes 10 us: each sends half of an all-gather's bytes
// over 100 GB/s.
TEST(CollectiveModel, TwoGpusByHand) {
  Cluster cluster = round_cluster();
  cluster.transfer.intra_node_latency_us = 10;
  const auto choices = collective_choices(CollectiveKind::all_gather, {2, 1, 2}, cluster);
  ASSERT_EQ(choices.size(), 3U) << "a ring by LL, LL128 and Simple";
  EXPECT_NEAR(choices[0].us(1e6), 7.21 + 1.22 + 2.47 * 1e6 / (1e6 + 2 * 2610) + 3.38 * 0.5e6 / 100e3, 1e-9);
  EXPECT_NEAR(choices[1].us(1e6), 16.2 + 3.59 + 2.17 * 0.5e6 / 100e3, 1e-9);
  EXPECT_NEAR(choices[2].us(1e6),
              25.9 + 1.03 + 16.3 * 1e6 / (1e6 + 17.7e6) + (1.37 * 0.5e6 + 0.378 * 0.5e6) / 100e3, 1e-9);
  EXPECT_EQ(fastest(choices, 1024).protocol, Protocol::ll);
  EXPECT_EQ(fastest(choices, 1e9).protocol, Protocol::simple);
}

TEST(CollectiveModel, NodesAreCrossedByAllNics) {
  // Two nodes of two GPUs: 2 x 8.07 GB/s leave each node, and bound the ring.
  const auto choices = collective_choices(CollectiveKind::reduce_scatter, {4, 2, 2}, round_cluster());
  EXPECT_NEAR(fastest(choices, 1e9).us(1e9), 0.75e9 / 16.14e3, 1e-6);
}

// Latencies go with the machine's own, whatever the links.
TEST(CollectiveModel, SmallMessagesTakeTheMachinesLatency) {
  Cluster cluster = round_cluster();
  cluster.node.gpus = cluster.node.nvlink_domain = 8;
  cluster.transfer.intra_node_latency_us = 8;
  const Spread eight{8, 1, 8};
  for (const CollectiveKind kind : kKinds) {
    const auto us = [&](double bytes) {
      return fastest(collective_choices(kind, eight, cluster), bytes).us(bytes);
    };
    const double once = us(256);
    EXPECT_GT(once, 0.8 * 8) << name(kind);
    EXPECT_LT(once, 4 * 8) << name(kind);
    cluster.transfer.intra_node_latency_us *= 2;
    EXPECT_NEAR(us(256), 2 * once, 0.1) << name(kind);
    cluster.transfer.intra_node_latency_us /= 2;
  }
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
  EXPECT_NEAR(gbps(100), 71.8, 1e-9);
}

TEST(CollectiveCost, MeasuredCurvesComeFirst) {
  const Cluster cluster = find_cluster("hgx-b200", 2);
  EXPECT_NEAR(collective_ns(CollectiveKind::all_gather, 1 << 30, first_ranks(16), cluster), 3360.46e3, 1e3);
  EXPECT_NEAR(collective_ns(CollectiveKind::all_gather, 1 << 30, first_ranks(8), cluster), 1486.06e3, 1e3);
  EXPECT_EQ(collective_ns(CollectiveKind::all_gather, 1 << 30, first_ranks(1), cluster), 0);
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
  cluster.transfer.intra_node_latency_us = pick("intra_node_latency_us", rc::gen::inRange(0, 20));
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
  cluster.transfer.intra_node_latency_us += 5;
  RC_ASSERT(us(bytes) >= near);
}

// On every preset, measured or not; and no faster than what one GPU receives allows at the full rate of its
// links.
TEST(CollectiveCost, TimesOfPresetsNeverFallAndKeepToTheLinks) {
  for (const std::string& preset : cluster_names()) {
    const Cluster cluster = find_cluster(preset, 8);
    const double link = std::max(cluster.node.nvlink_gbps, cluster.node.pcie_gbps);
    for (const int gpus : {2, 3, 4, 7, 8, 16, 32}) {
      const std::vector<Rank> ranks = first_ranks(gpus);
      for (const CollectiveKind kind : kKinds) {
        double before = 0;
        for (double bytes = 1; bytes < 1e11; bytes *= 1.7) {
          const double ns = collective_ns(kind, bytes, ranks, cluster);
          ASSERT_GE(ns, before) << preset << ", " << name(kind) << " of " << bytes << " over " << gpus;
          before = ns;
          // With reductions in the switch a GPU receives the buffer once.
          const double share = kind == CollectiveKind::broadcast || kind == CollectiveKind::send_recv ||
                                       kind == CollectiveKind::all_reduce
                                   ? 1
                                   : 1 - 1.0 / gpus;
          ASSERT_GE(ns, share * bytes / link) << preset << ", " << name(kind) << " of " << bytes;
        }
      }
    }
  }
}

TEST(CollectiveEstimate, SaysHowItIsKnown) {
  const Cluster b200 = find_cluster("hgx-b200", 2), h100 = find_cluster("dgx-h100", 2);
  const auto of = [](CollectiveKind kind, const Cluster& cluster, int gpus, double bytes) {
    return collective_estimate(kind, bytes, first_ranks(gpus), cluster);
  };
  const CollectiveEstimate measured = of(CollectiveKind::all_gather, b200, 8, 1 << 30);
  EXPECT_EQ(measured.curve, Origin::measured);
  EXPECT_NEAR(measured.us, 1486.06, 1);
  // What is like it is measured no more.
  const Cluster like = read_cluster(
      "name: \"mine\" like: \"hgx-b200\" node { nvlink_gbps { value: 450 origin: measured source: \"x\" } }",
      "mine.txtpb");
  EXPECT_EQ(of(CollectiveKind::all_gather, like, 8, 1 << 30).curve, Origin::borrowed);
  const CollectiveEstimate algebra = of(CollectiveKind::all_gather, h100, 8, 1 << 30);
  EXPECT_EQ(algebra.curve, std::nullopt);
  EXPECT_EQ(algebra.choice.algorithm, Algorithm::ring);
  // Wider where nobody measured, where messages are small, and between nodes.
  const auto width = [](const CollectiveEstimate& e) { return e.high_us / e.low_us; };
  EXPECT_LT(width(measured), width(algebra));
  EXPECT_LT(width(algebra), width(of(CollectiveKind::all_gather, h100, 16, 1 << 30)));
  EXPECT_LT(width(measured), width(of(CollectiveKind::all_gather, b200, 8, 1 << 10)));
}

// As the exchange of a plan.
TEST(CollectiveEstimate, SendRecvGoesAlongTheTransferCurves) {
  const Cluster cluster = find_cluster("a800", 2);
  const double bytes = 1 << 20;
  EXPECT_NEAR(collective_estimate(CollectiveKind::send_recv, bytes, first_ranks(8), cluster).us,
              bytes / 46.5e3, 1e-6);
  EXPECT_NEAR(collective_estimate(CollectiveKind::send_recv, bytes, first_ranks(16), cluster).us,
              bytes / 11.27e3, 1e-6);
}

}  // namespace
}  // namespace cp::sim
