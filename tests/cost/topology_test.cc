#include "sim/cost/network/topology.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Nodes of 4 GPUs with NVLink, a NIC for each GPU, rails, 2 nodes to a leaf.
Cluster nvlink_cluster() {
  Cluster cluster;
  cluster.nodes = 4;
  cluster.node = {.gpus = 4, .nvlink_domain = 4, .nvlink_gbps = 400, .pcie_gbps = 50};
  cluster.network = {
      .nic_gbps = 50, .gpus_per_nic = 1, .nodes_per_leaf = 2, .oversubscription = 2, .latency_us = 4};
  cluster.transfer.intra_node_latency_us = 1.5;
  return cluster;
}

// Nodes of 4 GPUs, two to a PCIe switch, one NIC.
Cluster pcie_cluster() {
  Cluster cluster;
  cluster.nodes = 2;
  cluster.node = {
      .gpus = 4, .nvlink_domain = 1, .pcie_gbps = 25, .gpus_per_pcie_switch = 2, .pcie_root_gbps = 20};
  cluster.network = {.nic_gbps = 12.5, .gpus_per_nic = 4};
  return cluster;
}

std::vector<std::string> names(const Topology& topology, int source, int target) {
  const Route route = topology.route(source, target);
  std::vector<std::string> found;
  for (const LinkId link : route.links()) found.push_back(topology.name(link));
  return found;
}

double capacity(const Topology& topology, const std::string& name) {
  return topology.capacities()[static_cast<std::size_t>(topology.find(name))];
}

TEST(TopologyTest, InsideAnNvlinkDomain) {
  const Topology topology(nvlink_cluster());
  EXPECT_THAT(names(topology, 5, 6), ElementsAre("gpu 5 nvlink out", "gpu 6 nvlink in"));
  EXPECT_EQ(capacity(topology, "gpu 5 nvlink out"), 400);
  EXPECT_TRUE(topology.inside(5, 6));
  EXPECT_EQ(topology.latency_ns(5, 6), 1500);
  EXPECT_EQ(topology.num_gpus(), 16);
}

TEST(TopologyTest, ADomainOfSeveralNodes) {
  Cluster cluster = nvlink_cluster();
  cluster.node.nvlink_domain = 8;
  const Topology topology(cluster);
  EXPECT_THAT(names(topology, 3, 4), ElementsAre("gpu 3 nvlink out", "gpu 4 nvlink in"));
  EXPECT_TRUE(topology.inside(3, 4));
  EXPECT_FALSE(topology.inside(7, 8));
}

TEST(TopologyTest, PcieGoesThroughTheHostWhereThatIsBounded) {
  Cluster cluster = pcie_cluster();
  const std::vector<std::string> apart = names(Topology(cluster), 0, 2);
  EXPECT_THAT(apart,
              ElementsAre("gpu 0 pcie up", "pcie switch 0 up", "pcie switch 1 down", "gpu 2 pcie down"));
  cluster.node.pcie_host_gbps = 15;
  const Topology bounded(cluster);
  EXPECT_THAT(names(bounded, 4, 6), ElementsAre("gpu 4 pcie up", "pcie switch 2 up", "host 1 in",
                                                "host 1 out", "pcie switch 3 down", "gpu 6 pcie down"));
  EXPECT_EQ(capacity(bounded, "host 1 out"), 15);
  EXPECT_THAT(names(bounded, 0, 1), ElementsAre("gpu 0 pcie up", "gpu 1 pcie down"));
  // Without peers those of one switch, too.
  cluster.node.pcie_peers = false;
  EXPECT_THAT(names(Topology(cluster), 0, 1),
              ElementsAre("gpu 0 pcie up", "pcie switch 0 up", "host 0 in", "host 0 out",
                          "pcie switch 0 down", "gpu 1 pcie down"));
}

TEST(TopologyTest, RailsMeetOnALeafOrAboveIt) {
  const Topology topology(nvlink_cluster());
  EXPECT_THAT(names(topology, 1, 5), ElementsAre("nic 1 tx", "nic 5 rx"));  // same rail, same group of nodes
  EXPECT_THAT(names(topology, 1, 6), ElementsAre("nic 1 tx", "leaf 1 up", "leaf 2 down", "nic 6 rx"));
  EXPECT_THAT(names(topology, 1, 9), ElementsAre("nic 1 tx", "leaf 1 up", "leaf 5 down", "nic 9 rx"));
  EXPECT_EQ(capacity(topology, "leaf 1 up"), 50);  // 2 NICs of 50, oversubscribed 2:1
  EXPECT_EQ(topology.latency_ns(1, 5), 4000);
}

TEST(TopologyTest, WithoutRailsANodeHangsOnOneLeaf) {
  Cluster cluster = nvlink_cluster();
  cluster.nodes = 3;
  cluster.network.rails = false;
  const Topology topology(cluster);
  EXPECT_THAT(names(topology, 1, 6), ElementsAre("nic 1 tx", "nic 6 rx"));
  EXPECT_THAT(names(topology, 1, 9), ElementsAre("nic 1 tx", "leaf 0 up", "leaf 1 down", "nic 9 rx"));
  EXPECT_EQ(capacity(topology, "leaf 0 up"), 200);
  EXPECT_EQ(capacity(topology, "leaf 1 down"), 100);  // one node alone
}

TEST(TopologyTest, OneLeafHasNoLinksUpwards) {
  Cluster cluster = nvlink_cluster();
  cluster.network.rails = false;
  cluster.network.nodes_per_leaf = 4;
  const Topology topology(cluster);
  EXPECT_THAT(names(topology, 0, 15), ElementsAre("nic 0 tx", "nic 15 rx"));
  EXPECT_THROW(topology.find("leaf 0 up"), InvalidInput);
}

TEST(TopologyTest, AcrossRailsByNvlink) {
  const Topology topology(nvlink_cluster(), {}, {.cross_rails_by_nvlink = true});
  EXPECT_THAT(names(topology, 1, 6),
              ElementsAre("gpu 1 nvlink out", "gpu 2 nvlink in", "nic 2 tx", "nic 6 rx"));
  EXPECT_THAT(names(topology, 1, 5), ElementsAre("nic 1 tx", "nic 5 rx"));
}

TEST(TopologyTest, PcieTree) {
  const Topology topology(pcie_cluster());
  EXPECT_THAT(names(topology, 0, 1), ElementsAre("gpu 0 pcie up", "gpu 1 pcie down"));
  EXPECT_THAT(names(topology, 0, 2),
              ElementsAre("gpu 0 pcie up", "pcie switch 0 up", "pcie switch 1 down", "gpu 2 pcie down"));
  // The NIC serves both switches.
  EXPECT_THAT(names(topology, 1, 6), ElementsAre("gpu 1 pcie up", "pcie switch 0 up", "nic 0 tx", "nic 1 rx",
                                                 "pcie switch 3 down", "gpu 6 pcie down"));
  EXPECT_EQ(capacity(topology, "pcie switch 0 up"), 20);
}

TEST(TopologyTest, NvlinkPairsBesidePcie) {
  Cluster cluster = pcie_cluster();
  cluster.node.nvlink_domain = 2;
  cluster.node.nvlink_gbps = 300;
  const Topology topology(cluster);
  EXPECT_THAT(names(topology, 0, 1), ElementsAre("gpu 0 nvlink out", "gpu 1 nvlink in"));
  EXPECT_THAT(names(topology, 1, 2),
              ElementsAre("gpu 1 pcie up", "pcie switch 0 up", "pcie switch 1 down", "gpu 2 pcie down"));
}

TEST(TopologyTest, EveryLinkIsFoundByItsName) {
  for (const Cluster& cluster : {nvlink_cluster(), pcie_cluster()}) {
    const Topology topology(cluster);
    for (LinkId link = 0; link < static_cast<LinkId>(topology.num_links()); ++link) {
      EXPECT_EQ(topology.find(topology.name(link)), link);
    }
  }
}

TEST(TopologyTest, FactorsOfLinksAndGpus) {
  const Topology topology(nvlink_cluster(), {.links = {{"nic 3 rx", 0.5}}, .gpus = {{3, 0.8}, {2, 0.1}}});
  EXPECT_DOUBLE_EQ(capacity(topology, "nic 3 rx"), 50 * 0.5 * 0.8);
  EXPECT_DOUBLE_EQ(capacity(topology, "nic 3 tx"), 40);
  EXPECT_DOUBLE_EQ(capacity(topology, "gpu 2 nvlink in"), 40);
  EXPECT_DOUBLE_EQ(capacity(topology, "leaf 1 up"), 50);
  // A NIC that others share is not the GPU's.
  EXPECT_DOUBLE_EQ(capacity(Topology(pcie_cluster(), {.gpus = {{0, 0.5}}}), "nic 0 tx"), 12.5);
}

TEST(TopologyTest, ASpreadIsSeededAndKeepsItsBounds) {
  const Topology even(nvlink_cluster()), a(nvlink_cluster(), {.spread = 0.1, .seed = 7}),
      again(nvlink_cluster(), {.spread = 0.1, .seed = 7}), b(nvlink_cluster(), {.spread = 0.1, .seed = 8});
  EXPECT_EQ(a.capacities(), again.capacities());
  EXPECT_NE(a.capacities(), b.capacities());
  double least = 2, most = 0;
  for (std::size_t link = 0; link < a.num_links(); ++link) {
    const double factor = a.capacities()[link] / even.capacities()[link];
    least = std::min(least, factor), most = std::max(most, factor);
  }
  EXPECT_GE(least, 0.9);
  EXPECT_LT(least, 0.92);
  EXPECT_GT(most, 1.08);
  EXPECT_LE(most, 1.1);
}

TEST(TopologyTest, SaysWhatIsMissing) {
  Cluster cluster = nvlink_cluster();
  cluster.network.nic_gbps = 0;
  EXPECT_THAT([&] { Topology topology(cluster); },
              ThrowsMessage<InvalidInput>(AllOf(HasSubstr("network.nic_gbps"), HasSubstr("4 nodes"))));
  cluster = pcie_cluster();
  cluster.node.pcie_gbps = 0;
  EXPECT_THAT([&] { Topology topology(cluster); }, ThrowsMessage<InvalidInput>(HasSubstr("node.pcie_gbps")));
  const auto with = [](const LinkFactors& factors) { Topology topology(nvlink_cluster(), factors); };
  EXPECT_THAT(
      [&] {
        with({.links = {{"nic 99 tx", 0.5}}});
      },
      ThrowsMessage<InvalidInput>(AllOf(HasSubstr("nic 99 tx"), HasSubstr("\"nic 15 rx\""))));
  EXPECT_THAT(
      [&] {
        with({.gpus = {{16, 0.5}}});
      },
      ThrowsMessage<InvalidInput>(HasSubstr("the last one is 15")));
  EXPECT_THROW(with({.spread = 1}), InvalidInput);
  EXPECT_THROW(with({.gpus = {{0, 0}}}), InvalidInput);
}

}  // namespace
}  // namespace cp::sim
