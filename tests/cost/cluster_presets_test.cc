// The presets of clusters: complete, sourced, and true to the tables that they were calibrated from.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/cluster_fields.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/presets/csv.h"
#include "sim/cost/presets/embedded.h"

namespace cp::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Curves are written with six significant digits.
constexpr double kSixDigits = 5e-6;

TEST(ClusterPresets, AreTheseAndRead) {
  EXPECT_THAT(cluster_names(), ElementsAre("a100-pcie", "a800", "dgx-a100", "dgx-h100", "gb200-nvl72",
                                           "gb300-nvl72", "generic", "h100-96gb-500w", "h800", "hgx-b200",
                                           "hgx-b300", "hgx-h200", "l20-pcie", "l40s-pcie"));
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = find_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_NO_THROW(validate_cluster(cluster)) << name;
    EXPECT_FALSE(cluster.gpu.name.empty()) << name;
  }
}

TEST(ClusterPresets, EveryNumberAndCurveHasASource) {
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = find_cluster(name);
    const Cluster defaults;
    std::map<std::string, double> unsaid;
    for_each_number(defaults, [&](const std::string& field, const auto& number, const Range&, Need need) {
      if (need == Need::optional) unsaid[field] = static_cast<double>(number);
    });
    std::set<std::string> known;
    for_each_number(cluster, [&](const std::string& field, const auto& number, const Range&, Need) {
      known.insert(field);
      const auto same = unsaid.find(field);
      if (same != unsaid.end() && same->second == static_cast<double>(number)) return;
      EXPECT_NE(cluster.source_of(field), nullptr) << name << " " << field;
    });
    for_each_curve(cluster, [&](const std::string& field, const Curve& curve) {
      if (curve.empty()) return;
      known.insert(field);
      EXPECT_NE(cluster.source_of(field), nullptr) << name << " " << field;
    });
    if (!cluster.rates.empty()) {
      known.insert("rates");
      EXPECT_NE(cluster.source_of("rates"), nullptr) << name;
    }
    // And no source without its number.
    std::set<std::string> sourced;
    for (const Source& source : cluster.sources) {
      EXPECT_FALSE(source.provenance.source.empty()) << name << " " << source.field;
      EXPECT_TRUE(sourced.insert(source.field).second) << name << " " << source.field << " twice";
      EXPECT_TRUE(known.contains(source.field)) << name << " " << source.field;
    }
  }
}

TEST(ClusterPresets, StandAlone) {
  for (const EmbeddedText& preset : embedded_clusters()) {
    EXPECT_THAT(preset.text, ::testing::Not(HasSubstr("\nlike:"))) << preset.name;
    EXPECT_THAT(preset.text, ::testing::StartsWith("# proto-file: sim/cost/cluster/cluster.proto\n"))
        << preset.name;
  }
}

TEST(ClusterPresets, WrittenTextReadsAsTheSame) {
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = find_cluster(name);
    EXPECT_EQ(read_cluster(write_cluster(cluster), "again.txtpb"), cluster) << name;
  }
}

TEST(ClusterPresets, HaveTheDataSheetsNumbers) {
  const struct {
    const char* name;
    double tflops_16, tflops_f32, hbm_gbps, nvlink_gbps;
    int gpus;
  } rows[] = {
      {"dgx-a100", 312, 19.5, 2039, 300, 8}, {"a800", 312, 19.5, 2039, 200, 8},
      {"dgx-h100", 989, 67, 3352, 450, 8},   {"h800", 989, 67, 3352, 200, 8},
      {"hgx-h200", 989, 67, 4800, 450, 8},   {"h100-96gb-500w", 989, 67, 2400, 450, 8},
      {"hgx-b200", 2250, 75, 8000, 900, 8},  {"gb200-nvl72", 2500, 80, 8000, 900, 4},
      {"hgx-b300", 2250, 75, 8000, 900, 8},  {"gb300-nvl72", 2500, 80, 8000, 900, 4},
      {"l20-pcie", 119.5, 59.8, 864, 0, 8},  {"a100-pcie", 312, 19.5, 1935, 0, 4},
      {"l40s-pcie", 362, 91.6, 864, 0, 8},
  };
  for (const auto& row : rows) {
    const Cluster cluster = find_cluster(row.name);
    EXPECT_EQ(cluster.gpu.tflops_16, row.tflops_16) << row.name;
    EXPECT_EQ(cluster.gpu.tflops_f32, row.tflops_f32) << row.name;
    EXPECT_EQ(cluster.gpu.hbm_gbps, row.hbm_gbps) << row.name;
    EXPECT_EQ(cluster.node.nvlink_gbps, row.nvlink_gbps) << row.name;
    EXPECT_EQ(cluster.node.gpus, row.gpus) << row.name;
  }
  EXPECT_EQ(find_cluster("gb200-nvl72").num_gpus(), 72);
  EXPECT_EQ(find_cluster("gb200-nvl72").node.nvlink_domain, 72);
  EXPECT_EQ(find_cluster("h100-96gb-500w").network.nic_gbps, 50);
}

// The time of each row comes back from the curve.
TEST(ClusterPresets, AttentionCurvesAreTheMeasuredTimes) {
  int rows = 0;
  for (const CsvRow& row : validation_table("flash_attention_a800_h800")) {
    const Cluster cluster = find_cluster(row.text("gpu") == "A800" ? "a800" : "h800");
    const bool causal = row.text("mask") == "causal";
    const double seq_len = row.number("seq_len");
    const double pairs = 32 * (causal ? seq_len * (seq_len + 1) / 2 : seq_len * seq_len);
    for (const bool backward : {false, true}) {
      const auto curve = std::find_if(cluster.attention.begin(), cluster.attention.end(), [&](const auto& c) {
        return c.backward == backward && c.causal == causal && c.head_dim == 128;
      });
      ASSERT_NE(curve, cluster.attention.end()) << row.where();
      const double flops = pairs * 128 * (backward ? 10 : 4);
      const double ms = flops / curve->tflops.at(pairs) / 1e9;
      const double measured = row.number(backward ? "backward_milliseconds" : "forward_milliseconds");
      EXPECT_NEAR(ms / measured, 1, kSixDigits) << row.where();
      ++rows;
    }
  }
  EXPECT_EQ(rows, 80);
  for (const char* name : {"a800", "h800"}) {
    for (const AttentionCurve& curve : find_cluster(name).attention)
      EXPECT_EQ(curve.tflops.points().size(), 10U);
  }
}

TEST(ClusterPresets, TransferCurvesAreTheMeasuredRates) {
  for (const std::string gpu : {"a800", "h800"}) {
    const Cluster cluster = find_cluster(gpu);
    const std::vector<CsvRow> rows = validation_table("point_to_point_a800_h800");
    EXPECT_EQ(cluster.transfer.intra_node.points().size(), rows.size());
    EXPECT_EQ(cluster.transfer.inter_node.points().size(), rows.size());
    for (const CsvRow& row : rows) {
      const double bytes = row.number("payload_bytes");
      EXPECT_EQ(cluster.transfer.intra_node.at(bytes), row.number(gpu + "_intra_node_gbps")) << row.where();
      EXPECT_EQ(cluster.transfer.inter_node.at(bytes), row.number(gpu + "_cross_node_8_pairs_gbps"))
          << row.where();
    }
  }
}

// Two L40S send each other half of an all-to-all.
TEST(ClusterPresets, PcieTransfersAreThoseOfTwoCards) {
  for (const char* preset : {"l20-pcie", "l40s-pcie", "a100-pcie"}) {
    const Cluster cluster = find_cluster(preset);
    std::size_t found = 0;
    for (const CsvRow& row : validation_table("nccl_gpus")) {
      if (row.text("system") != "L40S" || row.number("gpus") != 2 || row.text("collective") != "all_to_all")
        continue;
      const double sent = row.number("total_bytes") / 2;
      for (const CurvePoint& point : cluster.transfer.intra_node.points()) {
        if (point.x != sent) continue;
        ++found;
        EXPECT_NEAR(sent / row.number("microseconds") / 1e3 / point.y, 1, kSixDigits) << row.where();
      }
    }
    EXPECT_EQ(found, cluster.transfer.intra_node.points().size()) << preset;
  }
}

bool is_odd(const CsvRow& row) {
  return row.text("system") == "B200" && row.number("nodes") == 1 && row.text("collective") == "send_recv" &&
         row.number("total_bytes") >= (16 << 20) && row.number("total_bytes") <= (256 << 20);
}

TEST(ClusterPresets, CollectiveCurvesAreTheMeasuredTimes) {
  std::map<std::string, std::size_t> points;  // by preset
  int odd = 0;
  for (const CsvRow& row : validation_table("nccl_tests")) {
    if (is_odd(row)) {
      ++odd;
      continue;
    }
    const std::string name = row.text("system") == "B200" ? "hgx-b200" : "dgx-h100";
    const Cluster cluster = find_cluster(name);
    std::string operation = row.text("collective");
    int channels = 0;
    const std::size_t colon = operation.find(':');
    if (colon != std::string::npos) {
      channels = operation.back() - '0';
      operation.resize(colon);
    }
    if (operation == "send_recv") operation = "exchange";
    const auto curve =
        std::find_if(cluster.collectives.begin(), cluster.collectives.end(), [&](const auto& c) {
          return c.operation == operation && c.gpus == row.number("gpus") && c.nodes == row.number("nodes") &&
                 c.channels_per_net_peer == channels;
        });
    ASSERT_NE(curve, cluster.collectives.end()) << row.where();
    EXPECT_NEAR(curve->time_us.at(row.number("total_bytes")) / row.number("microseconds"), 1, kSixDigits)
        << row.where();
    ++points[name];
  }
  EXPECT_EQ(odd, 4);
  for (const auto& [name, measured] : points) {
    std::size_t written = 0;
    for (const CollectiveCurve& curve : find_cluster(name).collectives)
      written += curve.time_us.points().size();
    EXPECT_EQ(written, measured) << name;
  }
}

TEST(ClusterPresets, BorrowedAttentionIsTheSameShareOfThePeak) {
  const Cluster theirs = find_cluster("h800");
  const Cluster ours = read_cluster(
      "name: \"mine\"\nlike: \"dgx-h100\"\ngpu { tflops_16 { value: 494.5 origin: measured source: \"half\" "
      "} }\n"
      "attention_of { preset: \"h800\" source: \"the same die\" }\n",
      "mine.txtpb");
  ASSERT_EQ(ours.attention.size(), theirs.attention.size());
  for (std::size_t i = 0; i < ours.attention.size(); ++i) {
    const Source* source = ours.source_of(str("attention[", i, "].tflops"));
    ASSERT_NE(source, nullptr);
    EXPECT_EQ(source->provenance.origin, Origin::borrowed);
    EXPECT_THAT(source->provenance.source, HasSubstr("h800"));
    EXPECT_EQ(ours.attention[i].causal, theirs.attention[i].causal);
    for (const CurvePoint& point : theirs.attention[i].tflops.points())
      EXPECT_NEAR(ours.attention[i].tflops.at(point.x), 0.5 * point.y, 1e-12);
  }
}

// What a GPU is known to reach is of that GPU, or marked as taken over.
TEST(ClusterPresets, RatesAreOfTheGpuOrMarkedAsBorrowed) {
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = find_cluster(name);
    if (name == "generic") continue;
    const Source* source = cluster.source_of("rates");
    ASSERT_NE(source, nullptr) << name;
    EXPECT_EQ(is_borrowed(source), cluster.rates.gpu != cluster.gpu.name)
        << name << ": " << cluster.rates.gpu;
    const bool fp8 = std::any_of(cluster.rates.product.begin(), cluster.rates.product.end(),
                                 [](const ProductRate& rate) { return rate.bits == 8; });
    EXPECT_EQ(fp8, cluster.gpu.tflops_fp8 > 0) << name;
  }
}

// NVLink of the H100 is 450 / 200 times as fast as the H800's: 64 KiB take as long, 256 MiB the same start
// and the rest sooner.
TEST(ClusterPresets, BorrowedTransfersKeepTheirStart) {
  const Cluster h100 = find_cluster("dgx-h100"), h800 = find_cluster("h800");
  const auto ns = [](const Curve& curve, double bytes) { return bytes / curve.at(bytes); };
  const double small = 65536, large = 268435456;
  const double start = ns(h800.transfer.intra_node, small);
  EXPECT_NEAR(ns(h100.transfer.intra_node, small), start, 1e-9 * start);
  EXPECT_NEAR(ns(h100.transfer.intra_node, large),
              start + (ns(h800.transfer.intra_node, large) - start) * 200 / 450, 1e-9 * start);
  EXPECT_TRUE(is_borrowed(h100.source_of("transfer.intra_node")));
  EXPECT_TRUE(is_borrowed(h100.source_of("transfer.inter_node")));
  EXPECT_EQ(h800.source_of("transfer.intra_node")->provenance.origin, Origin::measured);
}

TEST(ClusterPresets, TakeTheNumberOfNodes) {
  EXPECT_EQ(find_cluster("dgx-h100").num_gpus(), 8);
  EXPECT_EQ(find_cluster("dgx-h100", 4).num_gpus(), 32);
  EXPECT_EQ(find_cluster("gb200-nvl72", 36).num_gpus(), 144);
  EXPECT_EQ(find_cluster("dgx-h100", 4).node_of(31), 3);
  EXPECT_THROW(find_cluster("dgx-h100", -1), InvalidInput);
}

TEST(ClusterPresets, AnUnknownNameIsAnsweredWithThePresets) {
  try {
    find_cluster("dgx-h10");
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(
        error.what(),
        "unknown cluster 'dgx-h10'; the nearest one is 'dgx-h100'; use one of a100-pcie, a800, dgx-a100, "
        "dgx-h100, gb200-nvl72, gb300-nvl72, generic, h100-96gb-500w, h800, hgx-b200, hgx-b300, hgx-h200, "
        "l20-pcie, l40s-pcie, or a file that "
        "ends in .txtpb");
  }
  EXPECT_THROW(find_cluster("/nowhere/mine.txtpb"), InvalidInput);
}

}  // namespace
}  // namespace cp::sim
