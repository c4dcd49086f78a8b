// Cluster files that change a figure of a preset: what they keep goes with it.
#include "sim/cost/cluster/inherit.h"

#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/network/pattern.h"
#include "sim/cost/timeline/collective_cost.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;

Cluster like(const std::string& preset, const std::string& changes) {
  return read_cluster("name: \"mine\" like: \"" + preset + "\"\n" + changes, "mine.txtpb");
}

std::string figure(const std::string& group, const std::string& name, double value) {
  return group + " { " + name + " { value: " + std::to_string(value) +
         " origin: measured source: \"x\" } }\n";
}

double collective_us(CollectiveKind kind, double bytes, int gpus, Cluster cluster) {
  cluster.nodes = std::max(cluster.nodes, (gpus + cluster.node.gpus - 1) / cluster.node.gpus);
  std::vector<Rank> ranks(static_cast<std::size_t>(gpus));
  std::iota(ranks.begin(), ranks.end(), 0);
  return collective_ns(kind, bytes, ranks, cluster) / 1e3;
}

// Of a ring: every GPU of a node, or of two, sends to the next one.
double hop_us(double bytes, bool across, Cluster cluster) {
  cluster.nodes = 2;
  const Topology topology(cluster);
  const Message message{0, across ? cluster.node.gpus : 1, bytes};
  return run_messages(topology, cluster.transfer, std::span(&message, 1))[0] / 1e3;
}

const std::vector<std::string> kPresets = {"a800", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "h800"};
constexpr double kBytes = 64 << 20;

TEST(Inherit, FasterNvlinkShortensRingsUlyssesAndGathersAlike) {
  for (const std::string& preset : kPresets) {
    const Cluster before = find_cluster(preset);
    const Cluster after = like(preset, figure("node", "nvlink_gbps", 2 * before.node.nvlink_gbps));
    EXPECT_LT(hop_us(kBytes, false, after), 0.7 * hop_us(kBytes, false, before)) << preset;
    for (const CollectiveKind kind : {CollectiveKind::all_to_all, CollectiveKind::all_gather,
                                      CollectiveKind::reduce_scatter, CollectiveKind::all_reduce}) {
      EXPECT_LT(collective_us(kind, kBytes, 8, after), 0.97 * collective_us(kind, kBytes, 8, before))
          << preset << ", " << name(kind);
    }
    EXPECT_EQ(hop_us(kBytes, true, after), hop_us(kBytes, true, before)) << preset;
    EXPECT_THAT(after.source_of("transfer.intra_node")->provenance.source,
                HasSubstr("times 2, the ratio of the rate of the links inside of a node"));
    EXPECT_TRUE(is_borrowed(after.source_of("transfer.intra_node")));
  }
}

TEST(Inherit, NicsGoUpAndDown) {
  for (const std::string& preset : kPresets) {
    const Cluster before = find_cluster(preset);
    for (const double factor : {0.25, 0.5, 2.0}) {
      const Cluster after = like(preset, figure("network", "nic_gbps", factor * before.network.nic_gbps));
      const double hop = hop_us(kBytes, true, after) / hop_us(kBytes, true, before);
      EXPECT_GT(hop, factor < 1 ? 1.4 : 0.4) << preset << " x " << factor;
      EXPECT_LT(hop, factor < 1 ? 1.001 / factor : 0.9) << preset << " x " << factor;
      const double gather = collective_us(CollectiveKind::all_gather, kBytes, 16, after) /
                            collective_us(CollectiveKind::all_gather, kBytes, 16, before);
      if (factor < 1) {
        EXPECT_GT(gather, 1) << preset << " x " << factor;
      } else {  // where NVLink bounds the ring, a faster network changes nothing
        EXPECT_LE(gather, 1) << preset << " x " << factor;
      }
      EXPECT_EQ(hop_us(kBytes, false, after), hop_us(kBytes, false, before)) << preset << " x " << factor;
      // No message is faster than the NIC.
      for (double bytes = 1; bytes < 1e10; bytes *= 4) {
        EXPECT_GE(hop_us(bytes, true, after) * 1e3, bytes / after.network.nic_gbps * (1 - 1e-9)) << preset;
      }
    }
  }
}

TEST(Inherit, AttentionGoesWithThePeak) {
  const Cluster before = find_cluster("dgx-h100");
  const Cluster after = like("dgx-h100", figure("gpu", "tflops_16", before.gpu.tflops_16 / 4));
  ASSERT_EQ(after.attention.size(), before.attention.size());
  for (std::size_t i = 0; i < before.attention.size(); ++i) {
    for (const CurvePoint& point : before.attention[i].tflops.points())
      EXPECT_NEAR(after.attention[i].tflops.at(point.x), point.y / 4, 1e-9 * point.y);
    EXPECT_THAT(after.source_of("attention[" + std::to_string(i) + "].tflops")->provenance.source,
                HasSubstr("dgx-h100's times 0.25, the ratio of tflops_16"));
  }
}

TEST(Inherit, PcieUplinksGoWithTheLinks) {
  const Cluster after = like("l20-pcie", figure("node", "pcie_gbps", 52));
  EXPECT_EQ(after.node.pcie_root_gbps, 52);
  EXPECT_LT(collective_us(CollectiveKind::all_to_all, kBytes, 8, after),
            0.6 * collective_us(CollectiveKind::all_to_all, kBytes, 8, find_cluster("l20-pcie")));
  const Cluster own = like("l20-pcie",
                           "node { pcie_gbps { value: 52 origin: measured source: \"x\" } pcie_root_gbps { "
                           "value: 26 origin: measured source: \"x\" } }");
  EXPECT_EQ(own.node.pcie_root_gbps, 26);
}

TEST(Inherit, WhatTheFileGivesIsItsOwn) {
  const std::string curve =
      "transfer { intra_node { origin: measured source: \"x\" point { x: 65536 y: 3 } point { x: 1048576 y: "
      "40 } } }\n";
  const Cluster after = like("a800", figure("node", "nvlink_gbps", 400) + curve);
  EXPECT_EQ(after.transfer.intra_node, Curve({{65536, 3}, {1048576, 40}}));
  EXPECT_EQ(after.source_of("transfer.intra_node")->provenance.source, "x");
  // And what it does not change is as it was.
  Cluster same = like("hgx-b200", figure("gpu", "kernel_launch_us", 1));
  const Cluster before = find_cluster("hgx-b200");
  EXPECT_EQ(same.collectives, before.collectives);
  EXPECT_EQ(same.transfer, before.transfer);
  EXPECT_EQ(same.attention, before.attention);
}

TEST(Inherit, CurvesOfAnotherPresetReplaceThoseOfTheFirst) {
  const Cluster after = like("hgx-b200", "transfer_of { preset: \"h800\" source: \"x\" }\n");
  EXPECT_THAT(after.source_of("transfer.intra_node")->provenance.source, HasSubstr("h800's with links"));
}

TEST(Inherit, OtherNodesThanTheCurvesAreOfAreNoError) {
  const Cluster after = like("hgx-b200",
                             "node { gpus { value: 4 origin: measured source: \"x\" } nvlink_domain { value: "
                             "4 origin: measured source: \"x\" } }\n");
  EXPECT_GT(collective_us(CollectiveKind::all_gather, kBytes, 4, after), 0);
}

TEST(Inherit, RescaledTimesDoNotFall) {
  for (const double factor : {0.1, 0.5, 3.0, 20.0}) {
    const Cluster base = find_cluster("hgx-b200");
    const Cluster after = like("hgx-b200", figure("node", "nvlink_gbps", factor * base.node.nvlink_gbps) +
                                               figure("network", "nic_gbps", base.network.nic_gbps / factor));
    EXPECT_NO_THROW(validate_cluster(after)) << factor;
  }
}

}  // namespace
}  // namespace cp::sim
