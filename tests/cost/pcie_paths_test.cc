// Collectives of GPUs that PCIe joins.
#include "sim/cost/timeline/pcie_paths.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/network/pattern.h"
#include "sim/cost/timeline/collective_cost.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

Spread spread_of_first(int gpus, const Cluster& cluster) {
  std::vector<Rank> ranks(static_cast<std::size_t>(gpus));
  std::iota(ranks.begin(), ranks.end(), 0);
  return spread_of(ranks, cluster);
}

Node two_switches() {
  Node node;
  node.gpus = 8, node.nvlink_domain = 1, node.gpus_per_pcie_switch = 4;
  node.pcie_gbps = 20, node.pcie_root_gbps = 10;
  return node;
}

TEST(PciePaths, OneSwitchIsNotLeft) {
  const PciePaths paths = pcie_paths({.gpus = 4, .nodes = 1}, 4, two_switches());
  EXPECT_DOUBLE_EQ(paths.ring_gbps, 20);
  EXPECT_DOUBLE_EQ(paths.all_to_all_gbps, 20 / 0.75);
}

// Each of four GPUs sends half of its buffer through the uplink that they share: 2 bytes of each byte.
TEST(PciePaths, UplinksAreShared) {
  const PciePaths paths = pcie_paths({.gpus = 8, .nodes = 1}, 8, two_switches());
  EXPECT_DOUBLE_EQ(paths.ring_gbps, 10);
  EXPECT_DOUBLE_EQ(paths.all_to_all_gbps, 5);
}

// Two hops of a ring cross, and 4 of the 8 buffers' bytes.
TEST(PciePaths, TheHostMovesWhatCrosses) {
  Node node = two_switches();
  node.pcie_host_gbps = 6;
  const PciePaths paths = pcie_paths({.gpus = 8, .nodes = 1}, 8, node);
  EXPECT_DOUBLE_EQ(paths.ring_gbps, 3);
  EXPECT_DOUBLE_EQ(paths.all_to_all_gbps, 1.5);
}

// All of it goes up and down, and through the host.
TEST(PciePaths, GpusThatDoNotSeeEachOtherSendThroughTheHost) {
  Node node = two_switches();
  node.pcie_peers = false;
  const PciePaths up = pcie_paths({.gpus = 4, .nodes = 1}, 4, node);
  EXPECT_DOUBLE_EQ(up.ring_gbps, 2.5);
  EXPECT_DOUBLE_EQ(up.all_to_all_gbps, 10.0 / 3);
  node.pcie_host_gbps = 6;
  const PciePaths through = pcie_paths({.gpus = 4, .nodes = 1}, 4, node);
  EXPECT_DOUBLE_EQ(through.ring_gbps, 1.5);
  EXPECT_DOUBLE_EQ(through.all_to_all_gbps, 2);
}

TEST(PciePaths, SpreadSaysOnWhichSwitchesTheyAre) {
  Cluster cluster = find_cluster("l20-pcie");
  const std::vector<Rank> apart = {0, 1, 2, 4};
  const Spread spread = spread_of(apart, cluster);
  EXPECT_EQ(spread.switches, 2);
  EXPECT_EQ(spread.most_on_a_switch, 3);
  EXPECT_FALSE(spread.nvlink);
  EXPECT_EQ(spread_of_first(4, cluster).switches, 1);
  EXPECT_LT(pcie_paths(spread, 4, cluster.node).ring_gbps * 0.999,
            pcie_paths(spread_of_first(4, cluster), 4, cluster.node).ring_gbps);
}

// What the links of the topology carry at best is never beaten, at any size.
TEST(PciePaths, AllToAllIsNoFasterThanTheUplinksAllow) {
  const Cluster cluster = find_cluster("l20-pcie");
  const Spread eight = spread_of_first(8, cluster);
  for (double bytes = 512; bytes < 1e10; bytes *= 8) {
    // Two switches of four: half of each buffer leaves, through one uplink for four GPUs.
    const double least_ns = 4 * bytes / 2 / cluster.node.pcie_root_gbps;
    EXPECT_GE(collective_ns(CollectiveKind::all_to_all, bytes, eight, cluster), least_ns) << bytes;
  }
}

RC_GTEST_PROP(PciePaths, NoCollectiveIsFasterThanItsMessagesAtFullRate, ()) {
  Cluster cluster = find_cluster("l20-pcie");
  cluster.node.gpus_per_pcie_switch = pick("gpus_per_pcie_switch", rc::gen::element(1, 2, 4, 8));
  cluster.node.pcie_peers = pick("pcie_peers", rc::gen::arbitrary<bool>());
  cluster.node.pcie_root_gbps = pick("pcie_root_gbps", rc::gen::element(6, 26, 50));
  cluster.node.pcie_host_gbps = pick("pcie_host_gbps", rc::gen::element(0, 10, 30));
  cluster.transfer.intra_node = {};
  cluster.transfer.intra_node_latency_us = 0;
  const int gpus = pick("gpus", rc::gen::inRange(2, 9));
  const double bytes = pick("bytes", rc::gen::inRange(1 << 10, 1 << 30));
  std::vector<Message> messages;
  for (int i = 0; i < gpus; ++i) {
    for (int j = 0; j < gpus; ++j) {
      if (i != j) messages.push_back({i, j, bytes / gpus});
    }
  }
  const Topology topology(cluster);
  double last_ns = 0;
  for (const double ns : run_messages(topology, cluster.transfer, messages)) last_ns = std::max(last_ns, ns);
  const double all_to_all_ns =
      collective_ns(CollectiveKind::all_to_all, bytes, spread_of_first(gpus, cluster), cluster);
  RC_ASSERT(all_to_all_ns >= last_ns * (1 - 1e-9));
}

}  // namespace
}  // namespace cp::sim
