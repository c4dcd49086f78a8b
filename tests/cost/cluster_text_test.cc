// People's own clusters: what is wrong with one stands at its place.
#include <cstdio>
#include <fstream>
#include <string>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/cluster_fields.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/presets/embedded.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using ::testing::StartsWith;

std::string cluster_error(std::string_view text) {
  try {
    read_cluster(text, "a.txtpb");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "(no error)";
}

// A good cluster whose third line is the given one.
std::string with_line(const std::string& line) { return "name: \"mine\"\nlike: \"generic\"\n" + line + "\n"; }

TEST(ClusterText, StartsFromAPreset) {
  const Cluster base = find_cluster("dgx-h100");
  const Cluster cluster = read_cluster(
      "name: \"mine\"\nlike: \"dgx-h100\"\nnodes: 3\ngpu { hbm_gbps { value: 2400 origin: measured source: "
      "\"x\" } }\n",
      "a.txtpb");
  Cluster expected = base;
  expected.name = "mine";
  expected.nodes = 3;
  expected.gpu.hbm_gbps = 2400;
  set_source(expected.sources, {"gpu.hbm_gbps", {Origin::measured, "x"}});
  EXPECT_EQ(cluster, expected);
}

// Curves of its own take the place of all that the preset has of that kind.
TEST(ClusterText, ReplacesLists) {
  const Cluster cluster = read_cluster(
      "name: \"mine\"\nlike: \"dgx-h100\"\n"
      "attention { head_dim: 64 tflops { origin: measured source: \"x\" point { x: 1e6 y: 100 } } }\n",
      "a.txtpb");
  ASSERT_EQ(cluster.attention.size(), 1U);
  EXPECT_EQ(cluster.attention[0].head_dim, 64);
  EXPECT_EQ(cluster.source_of("attention[0].tflops")->provenance.source, "x");
  EXPECT_EQ(cluster.source_of("attention[1].tflops"), nullptr);
  EXPECT_EQ(cluster.collectives.size(), 1U);
}

TEST(ClusterText, ErrorsStandAtTheirPlace) {
  const struct {
    std::string line, message;
  } rows[] = {
      {"gpu { hbm_gpbs { value: 1 origin: measured source: \"x\" } }",
       "a.txtpb:3:7: unknown field 'hbm_gpbs' of Gpu; the nearest one is 'hbm_gbps'"},
      {"gpu { hbm_gbps { value: 1 } }",
       "a.txtpb:3:7: gpu.hbm_gbps: has neither origin nor source; add, for example, origin: published "
       "source: "
       "\"data sheet\", where origin is one of measured, published, estimated, assumed, borrowed"},
      {"gpu { hbm_gbps { value: 1 origin: measured source: \" \" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: has no source; add where it is from, or why it is so: for example, "
       "source: "
       "\"data sheet\""},
      {"gpu { hbm_gbps { value: 1 source: \"x\" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: has no origin; add origin: and one of measured, published, estimated, "
       "assumed, borrowed"},
      {"gpu { hbm_gbps { value: 1 origin: origin_unspecified source: \"x\" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: has no origin; add origin: and one of measured, published, estimated, "
       "assumed, borrowed"},
      {"gpu { hbm_gbps { value: 1 origin: guessed source: \"x\" } }",
       "a.txtpb:3:35: unknown origin 'guessed'; use one of measured, published, estimated, assumed, "
       "borrowed"},
      {"gpu { hbm_gbps { value: 1 origin: 6 source: \"x\" } }",
       "a.txtpb:3:27: unknown origin 6; use one of measured, published, estimated, assumed, borrowed"},
      {"node { nvls { value: true source: \"x\" } }",
       "a.txtpb:3:8: node.nvls: has no origin; add origin: and one of measured, published, estimated, "
       "assumed, borrowed"},
      {"transfer { inter_node { source: \"x\" point { x: 1 y: 2 } } }",
       "a.txtpb:3:12: transfer.inter_node: has no origin; add origin: and one of measured, published, "
       "estimated, assumed, borrowed"},
      {"rates { preset: \"h100-sxm\" source: \"x\" }",
       "a.txtpb:3:1: rates: has no origin; add origin: and one of measured, published, estimated, assumed, "
       "borrowed"},
      {"gpu { hbm_gbps { origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: has no value; add, for example, value: 1e+06"},
      {"gpu { hbm_gbps { value: -5 origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: -5 is not in [1e-06, 1e+06]"},
      {"gpu { hbm_gbps { value: 1e-15 origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: 1e-15 is not in [1e-06, 1e+06]"},
      {"gpu { tflops_fp8 { value: 1e-300 origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.tflops_fp8: 1e-300 is not 0, nor in [1e-06, 1e+06]"},
      {"memory_efficiency { origin: measured source: \"x\" point { x: 1 y: 1e-300 } }",
       "a.txtpb:3:50: memory_efficiency: a curve's point (1, 1e-300) must consist of numbers in [1e-12, "
       "1e+30]"},
      {"gpu { hbm_gbps { value: nan origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.hbm_gbps: nan is not in [1e-06, 1e+06]"},
      {"gpu { hbm_gbps { value: fast origin: measured source: \"x\" } }",
       "a.txtpb:3:25: Expected double, got: fast"},
      {"gpu { sustained_clock { value: 1.5 origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.sustained_clock: 1.5 is not in [1e-06, 1]"},
      {"gpu { usable_memory_gib { value: 90 origin: measured source: \"x\" } }",
       "a.txtpb:3:7: gpu.usable_memory_gib: 90 is more than gpu.memory_gib, 80; use at most that"},
      {"node { gpus { value: 4.5 origin: measured source: \"x\" } }",
       "a.txtpb:3:8: node.gpus: 4.5 is not a whole number; use 4"},
      {"node { nvlink_domain { value: 12 origin: measured source: \"x\" } }",
       "a.txtpb:3:8: node.nvlink_domain: 12 neither divides node.gpus, 8, nor is a multiple of it; use 8"},
      {"node { nvlink_gbps { value: 0 origin: measured source: \"x\" } }",
       "a.txtpb:3:1: node.nvlink_domain: 8 needs an nvlink_gbps above 0; without NVLink use 1"},
      {"node { nvls { origin: measured source: \"x\" } }",
       "a.txtpb:3:8: node.nvls: has no value; add value: true or value: false"},
      {"network { gpus_per_nic { value: 3 origin: measured source: \"x\" } }",
       "a.txtpb:3:11: network.gpus_per_nic: 3 does not divide node.gpus, 8; use a divisor of it, for example "
       "8"},
      {"nodes: -1", "a.txtpb:3:1: nodes: -1 is not in [1, 2097152]"},
      {"transfer { intra_node { origin: measured source: \"x\" point { x: 1 y: 401 } } }",
       "a.txtpb:3:12: transfer.intra_node: the point (1, 401) is above node.nvlink_gbps, 400"},
      {"transfer { inter_node { origin: measured source: \"x\" } }",
       "a.txtpb:3:12: transfer.inter_node: has no points; add, for example, point { x: 1048576 y: 46.5 }"},
      {"transfer { inter_node { point { x: 1 y: 2 } } }",
       "a.txtpb:3:12: transfer.inter_node: has neither origin nor source; add, for example, origin: "
       "published "
       "source: \"data sheet\", where origin is one of measured, published, estimated, assumed, borrowed"},
      {"transfer { intra_node { origin: measured source: \"x\" point { x: 1024 y: 0.1 } point { x: 2048 y: "
       "0.25 } } }",
       "a.txtpb:3:12: transfer.intra_node: the point (2048, 0.25) takes 8.192 us, less than the 10.24 us of "
       "(1024, 0.1) before it, and time does not fall as bytes grow; leave one of the two out"},
      {"transfer { inter_node { origin: measured source: \"x\" point { x: 1024 y: 0.1 } point { x: 2048 y: "
       "0.25 } } }",
       "a.txtpb:3:12: transfer.inter_node: the point (2048, 0.25) takes 8.192 us, less than the 10.24 us of "
       "(1024, 0.1) before it, and time does not fall as bytes grow; leave one of the two out"},
      {"memory_efficiency { origin: measured source: \"x\" point { x: 1000 y: 0.1 } point { x: 2000 y: 0.4 } "
       "}",
       "a.txtpb:3:1: memory_efficiency: the point (2000, 0.4) takes "},
      {"collectives { operation: \"all_gather\" gpus: 8 time_us { origin: measured source: \"x\" point { x: "
       "67108864 y: 793 } "
       "point { x: 536870912 y: 780 } } }",
       "a.txtpb:3:47: collectives[0].time_us: the point (536870912, 780) takes 780 us, less than the 793 us "
       "of "
       "(67108864, 793) before it, and time does not fall as bytes grow; leave one of the two out"},
      {"matmul_efficiency { origin: measured source: \"x\" point { x: 1 y: 1.5 } }",
       "a.txtpb:3:1: matmul_efficiency: the point (1, 1.5) is above the peak, 1"},
      {"matmul_efficiency { origin: measured source: \"x\"\n  point { x: 1 y: 1 }\n  point { x: 2 y: -1 }\n  "
       "point { x: 1 y: "
       "1 }\n}",
       "a.txtpb:5:3: matmul_efficiency: a curve's point (2, -1) must consist of numbers in [1e-12, 1e+30]\n"
       "a.txtpb:6:3: matmul_efficiency: a curve has two points at 1; keep one"},
      {"attention { tflops { origin: measured source: \"x\" point { x: 1 y: 501 } } }",
       "a.txtpb:3:13: attention[0].tflops: the point (1, 501) is above gpu.tflops_16, 500"},
      {"attention { }\nattention { }",
       "a.txtpb:3:1: attention[0]: has no tflops\na.txtpb:4:1: attention[1]: has no tflops"},
      {"collectives { operation: \"all_gathr\" gpus: 8 time_us { origin: measured source: \"x\" point { x: 1 "
       "y: 1 } } }",
       "a.txtpb:3:1: collectives[0]: unknown operation 'all_gathr'; the nearest one is 'all_gather'; use one "
       "of "
       "all_gather, reduce_scatter, all_reduce, all_to_all, exchange"},
      {"collectives { operation: \"all_gather\" gpus: 9 nodes: 2 time_us { origin: measured source: \"x\" "
       "point { x: 1 y: 1 } "
       "} }",
       "a.txtpb:3:1: collectives[0]: gpus 9 on nodes 2 are not 2 or more, the same number on each node"},
      {"attention_of { preset: \"h800\" }",
       "a.txtpb:3:1: attention_of: has no source; add, for example, source: \"same die\""},
      {"attention_of { preset: \"dgx-h100\" source: \"x\" }",
       "a.txtpb:3:1: attention_of: 'dgx-h100' has no attention curves to lend; use one of a800, h800, or "
       "take its "
       "rates: rates { preset: ... }"},
  };
  for (const auto& row : rows) {
    if (row.message.ends_with("takes ")) {
      EXPECT_THAT(cluster_error(with_line(row.line)), ::testing::StartsWith(row.message)) << row.line;
    } else {
      EXPECT_EQ(cluster_error(with_line(row.line)), row.message) << row.line;
    }
  }
}

TEST(ClusterText, UnknownPresetsAreNamedWithTheNearestOne) {
  EXPECT_THAT(cluster_error("name: \"mine\"\n  like: \"generics\"\n"),
              StartsWith("a.txtpb:2:3: like: unknown cluster 'generics'; the nearest one is 'generic'"));
  EXPECT_THAT(cluster_error(with_line("transfer_of { preset: \"h80\" source: \"x\" }")),
              StartsWith("a.txtpb:3:1: transfer_of: unknown cluster 'h80'; the nearest one is 'h800'"));
}

TEST(ClusterText, WithoutAPresetEveryNumberIsRequired) {
  EXPECT_EQ(
      cluster_error(
          "name: \"mine\"\n  gpu { tflops_16 { value: 1 origin: measured source: \"x\" } }\nnode { }\n"),
      "a.txtpb:1:1: network: lacks nic_gbps, gpus_per_nic, latency_us; add each, for example nic_gbps { "
      "value: 1 "
      "origin: published source: \"data sheet\" }, or all of a preset's: like: \"generic\"\n"
      "a.txtpb:2:3: gpu: lacks tflops_f32, hbm_gbps, memory_gib, usable_memory_gib, power_limit_w, "
      "sustained_clock, kernel_launch_us; add each, for example tflops_f32 { value: 1 origin: published "
      "source: "
      "\"data sheet\" }, "
      "or "
      "all of a preset's: like: \"generic\"\n"
      "a.txtpb:3:1: node: lacks gpus, nvlink_domain, nvlink_gbps, pcie_gbps, gpus_per_pcie_switch, "
      "pcie_root_gbps; add each, for example gpus { value: 1 origin: published source: \"data sheet\" }, or "
      "all "
      "of a preset's: "
      "like: "
      "\"generic\"");
  EXPECT_EQ(cluster_error("like: \"generic\"\nname: \"\"\n"), "(no error)");
}

TEST(ClusterText, AllErrorsAreReportedAtOnce) {
  EXPECT_EQ(cluster_error(with_line("gpu {\n"
                                    "  hbm_gbps { value: -1 origin: measured source: \"x\" }\n"
                                    "  tflops_16 { value: 1 }\n"
                                    "}\n"
                                    "network { gpus_per_nic { value: 0.5 origin: measured source: \"x\" } }\n"
                                    "matmul_efficiency { origin: measured source: \"x\" }\n")),
            "a.txtpb:4:3: gpu.hbm_gbps: -1 is not in [1e-06, 1e+06]\n"
            "a.txtpb:5:3: gpu.tflops_16: has neither origin nor source; add, for example, origin: published "
            "source: "
            "\"data sheet\", where origin is one of measured, published, estimated, assumed, borrowed\n"
            "a.txtpb:7:11: network.gpus_per_nic: 0.5 is not in [1, 1024]\n"
            "a.txtpb:8:1: matmul_efficiency: has no points; add, for example, point { x: 1048576 y: 46.5 }");
}

TEST(ClusterText, ValidationNamesFieldValueAndRange) {
  Cluster cluster = find_cluster("generic");
  cluster.gpu.hbm_gbps = -3;
  cluster.network.oversubscription = 0.5;
  try {
    validate_cluster(cluster);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(error.what(),
                 "cluster generic: gpu.hbm_gbps: -3 is not in [1e-06, 1e+06]\n"
                 "cluster generic: network.oversubscription: 0.5 is not in [1, 1000]");
  }
}

TEST(ClusterText, NothingIsWrittenWithoutASource) {
  Cluster cluster = find_cluster("generic");
  cluster.network.sharp = true;
  EXPECT_THROW(write_cluster(cluster), InvalidInput);
  set_source(cluster.sources, {"network.sharp", {Origin::published, "switched on"}});
  EXPECT_TRUE(read_cluster(write_cluster(cluster), "a.txtpb").network.sharp);
}

TEST(ClusterText, FilesAreRead) {
  const std::string path = ::testing::TempDir() + "cp_cluster_test.txtpb";
  std::ofstream(path) << with_line("nodes: 2");
  EXPECT_EQ(find_cluster(path).num_gpus(), 16);
  EXPECT_EQ(find_cluster(path, 3).num_gpus(), 24);
  std::ofstream(path) << with_line("node: 2");
  try {
    find_cluster(path);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), StartsWith(path + ":3:"));
  }
  std::remove(path.c_str());
}

// Any finite double comes back bit for bit.
RC_GTEST_PROP(ClusterText, RandomClustersComeBackAsTheyWere, ()) {
  Cluster cluster = find_cluster("generic");
  const auto share = [] {
    return (pick("share of 2^30", rc::gen::inRange(0, 1 << 30)) + 1) / double{1 << 30};
  };
  for_each_number(cluster, [&](const std::string& field, auto& number, const Range& range, Need) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(number)>, double>) {
      if (field == "gpu.usable_memory_gib" || field.starts_with("node.nvlink")) return;
      number = range.low + share() * (range.high - range.low);
      if (field == "gpu.memory_gib") number += cluster.gpu.usable_memory_gib;
      const auto origin = static_cast<Origin>(pick("origin", rc::gen::inRange(0, 5)));
      set_source(cluster.sources, {field, {origin, "random"}});
    }
  });
  if (cluster.gpu.memory_gib > 1e5) cluster.gpu.memory_gib = 1e5;
  cluster.nodes = pick("cluster.nodes", rc::gen::inRange(1, 1000));
  sort_by_field(cluster.sources);
  RC_ASSERT(read_cluster(write_cluster(cluster), "a.txtpb") == cluster);
}

// Whatever is broken, it is a cluster or an error.
RC_GTEST_PROP(ClusterText, AnyTextIsAClusterOrAnError, ()) {
  const auto texts = embedded_clusters();
  std::string text(texts[pick("preset", rc::gen::inRange<std::size_t>(0, texts.size()))].text);
  for (int i = pick("changes", rc::gen::inRange(1, 5)); i > 0; --i) {
    const auto at = pick("at", rc::gen::inRange<std::size_t>(0, text.size()));
    const auto length = pick("length", rc::gen::inRange<std::size_t>(0, 40));
    text.replace(at, length,
                 pick("what takes its place", rc::gen::container<std::string>(rc::gen::arbitrary<char>())));
    if (text.empty()) return;
  }
  cluster_error(text);
}

}  // namespace
}  // namespace cp::sim
