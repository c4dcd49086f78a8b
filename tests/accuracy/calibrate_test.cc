// Calibration: what was measured is what a cluster says afterwards, and planted parameters are found again.
#include "sim/accuracy/calibrate/calibrate.h"

#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/accuracy/calibrate/fit_software.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/sourced_text.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/estimate.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using testing::first_ranks;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;

Cluster reread(const Cluster& cluster) { return read_cluster(write_cluster(cluster), "mine.txtpb"); }

// Of `gpus` GPUs on `nodes` nodes; time_us of each size, rates to so many digits that they say what they are.
NcclOutput output_of(const std::string& test, int gpus, int nodes, double bus_factor,
                     const std::vector<std::pair<double, double>>& times) {
  NcclOutput output{test, gpus, nodes, {}};
  for (const auto& [bytes, time_us] : times) {
    const double rate = bytes / (time_us * 1e3);
    output.rows.push_back(
        {str("t.txt:", output.rows.size() + 1), bytes, time_us, rate, bus_factor * rate, 1e-6, 1e-6});
  }
  return output;
}

// ---- nccl-tests ----

TEST(Calibrate, CollectivesTakeWhatWasMeasured) {
  const Cluster old = find_cluster("h800", 2);
  const NcclOutput output =
      output_of("all_gather_perf", 16, 2, 15.0 / 16, {{1 << 20, 48.21}, {1 << 26, 700}, {1 << 30, 7214}});
  const auto curves = nccl_curves("all_gather", output, "t.txt", 0, 0, old);
  const Calibration calibration = calibrate(old, curves);
  ASSERT_EQ(calibration.fits.size(), 1U);
  const CurveFit& fit = calibration.fits[0];
  EXPECT_EQ(fit.what, "all_gather, 16 GPUs of 2 nodes");
  EXPECT_EQ(fit.provenance, (Provenance{Origin::measured, "t.txt"}));
  EXPECT_EQ(fit.points, 3);
  EXPECT_EQ(fit.before.rows, 3);
  EXPECT_GT(fit.before.median, 0.01);
  EXPECT_LE(fit.after.worst, 1e-12);
  const Cluster mine = reread(calibration.cluster);
  EXPECT_EQ(mine, calibration.cluster);
  ASSERT_NE(mine.source_of(fit.field), nullptr);
  EXPECT_EQ(mine.source_of(fit.field)->provenance, fit.provenance);
  EXPECT_DOUBLE_EQ(collective_ns(CollectiveKind::all_gather, 1 << 26, first_ranks(16), mine), 700e3);
  EXPECT_EQ(collective_ns(CollectiveKind::all_gather, 1 << 26, first_ranks(8), mine),
            collective_ns(CollectiveKind::all_gather, 1 << 26, first_ranks(8), old));

  // Once more: the curve is replaced.
  const NcclOutput faster = output_of("", 16, 2, 15.0 / 16, {{1 << 26, 600}});
  const Calibration again = calibrate(mine, nccl_curves("all_gather", faster, "u.txt", 0, 0, mine));
  EXPECT_EQ(again.cluster.collectives.size(), mine.collectives.size());
  EXPECT_EQ(again.fits[0].field, fit.field);
  EXPECT_DOUBLE_EQ(collective_ns(CollectiveKind::all_gather, 1 << 26, first_ranks(16), again.cluster), 600e3);
}

TEST(Calibrate, SendRecvIsTheCurveOfTransfersToo) {
  const Cluster old = find_cluster("h800");
  const auto curve_of = [&](int gpus, int nodes, double us) {
    const NcclOutput output = output_of("sendrecv_perf", gpus, nodes, 1, {{1 << 20, us}});
    return calibrate(old, nccl_curves("send_recv", output, "t.txt", 0, 0, old));
  };
  const Calibration inside = curve_of(8, 1, 20), across = curve_of(16, 2, 100);
  EXPECT_DOUBLE_EQ(inside.cluster.transfer.intra_node.at(1 << 20), (1 << 20) / 20e3);
  EXPECT_EQ(inside.cluster.transfer.inter_node, old.transfer.inter_node);
  EXPECT_DOUBLE_EQ(across.cluster.transfer.inter_node.at(1 << 20), (1 << 20) / 100e3);
  EXPECT_EQ(across.cluster.transfer.intra_node, old.transfer.intra_node);
  for (const Calibration* calibration : {&inside, &across}) {
    ASSERT_EQ(calibration->fits.size(), 2U);
    EXPECT_THAT(calibration->fits[1].field, StartsWith("collectives["));
    for (const CurveFit& fit : calibration->fits) EXPECT_LE(fit.after.worst, 1e-9) << fit.field;
    EXPECT_EQ(reread(calibration->cluster), calibration->cluster);
  }
}

TEST(Calibrate, ErrorsOfCollectivesSayWhatIsWrong) {
  const Cluster h800 = find_cluster("h800");
  const auto error = [&](const char* operation, const NcclOutput& output, int gpus = 0, int nodes = 0) {
    return message_of([&] { nccl_curves(operation, output, "t.txt", gpus, nodes, h800); });
  };
  const std::vector<std::pair<double, double>> times = {{1 << 20, 100}};
  EXPECT_THAT(
      error("allgather", output_of("", 8, 1, 0.875, times)),
      StartsWith("unknown operation 'allgather'; the nearest one is 'all_gather'; use one of all_gather, "));
  EXPECT_THAT(error("all_gather", output_of("all_reduce_perf", 8, 1, 1.75, times)),
              StartsWith("t.txt: the file holds the output of all_reduce_perf, not of all_gather_perf"));
  EXPECT_THAT(error("all_gather", output_of("", 8, 1, 1.75, times)),
              AllOf(StartsWith("t.txt:1: busbw "), HasSubstr("is not 0.875 times algbw 10.4858")));
  EXPECT_THAT(error("all_gather", output_of("", 0, 0, 0.875, times)),
              HasSubstr("add, for example, --gpus 8 --nodes 1"));
  EXPECT_THAT(error("all_gather", output_of("", 0, 0, 0.875, times), 8), StartsWith("no error"));
  EXPECT_THAT(error("all_gather", output_of("", 16, 1, 15.0 / 16, times)),
              StartsWith("t.txt: 16 GPUs on 1 nodes"));
  EXPECT_THAT(error("all_gather", output_of("", 9, 2, 8.0 / 9, times)),
              StartsWith("t.txt: 9 GPUs on 2 nodes"));
  EXPECT_THAT(error("send_recv", output_of("", 16, 2, 1, times)), StartsWith("no error"));
  EXPECT_THAT(
      error("send_recv", output_of("", 16, 2, 1, {{1 << 20, 20}})),
      StartsWith(
          "t.txt:1: a rate of 52.4288 GB/s is above network.nic_gbps of h800, 25; correct the row, or"));
  const auto curves = nccl_curves("all_gather", output_of("", 8, 1, 0.875, times), "t.txt", 0, 0, h800);
  EXPECT_THAT(message_of([&] {
                calibrate(h800, {curves[0], curves[0]});
              }),
              HasSubstr("is measured by t.txt and by t.txt; give one of them"));
}

// 4 KiB and 16 KiB took 20 and 18 us: both get 18.97, and what is written can be read.
TEST(Calibrate, TimesThatFallByNoiseAreAveraged) {
  const Cluster old = find_cluster("h800");
  const NcclOutput output = output_of("", 8, 1, 0.875, {{1024, 15}, {4096, 20}, {16384, 18}, {65536, 30}});
  const Calibration calibration = calibrate(old, nccl_curves("all_gather", output, "t.txt", 0, 0, old));
  const Curve& curve = calibration.cluster.collectives.at(0).time_us;
  ASSERT_EQ(curve.points().size(), 4U);
  EXPECT_EQ(curve.at(1024), 15);
  EXPECT_NEAR(curve.at(4096), 18.9737, 1e-4);
  EXPECT_EQ(curve.at(4096), curve.at(16384));
  EXPECT_EQ(curve.at(65536), 30);
  EXPECT_EQ(reread(calibration.cluster), calibration.cluster);
  const auto pairs =
      nccl_curves("send_recv", output_of("", 2, 1, 1, {{1 << 20, 40}, {1 << 21, 30}}), "t.txt", 0, 0, old);
  EXPECT_NO_THROW(reread(calibrate(old, {pairs[0]}).cluster));
}

RC_GTEST_PROP(CalibrateProperty, EveryMeasuredSizeIsPredictedAsMeasured, ()) {
  const Cluster old = find_cluster("h800", 4);
  const int nodes = pick("nodes", rc::gen::inRange(1, 5)),
            gpus = nodes * pick("gpus", rc::gen::inRange(2, 9));
  std::vector<std::pair<double, double>> times;
  const int sizes = pick("sizes", rc::gen::inRange(1, 8));
  double time_us = 0;
  for (int i = 0; i < sizes; ++i) {
    time_us += pick("microseconds", rc::gen::inRange(1, 1000000));
    times.emplace_back(1024 << (3 * i), time_us);
  }
  const NcclOutput output = output_of("", gpus, nodes, 2 * (1 - 1.0 / gpus), times);
  const Calibration calibration = calibrate(old, nccl_curves("all_reduce", output, "t.txt", 0, 0, old));
  RC_ASSERT(calibration.fits.at(0).after.worst <= 1e-9);
  RC_ASSERT(reread(calibration.cluster) == calibration.cluster);
}

// ---- tables of pairs and of kernels ----

TEST(Calibrate, TransfersFromATable) {
  const Cluster old = find_cluster("h800");
  const auto table = read_csv(
      "payload_bytes,intra_node_gbps,inter_node_gbps\n65536,5,2\n1048576,60,\n1048576,15,\n", "p.csv");
  const Calibration calibration = calibrate(old, transfer_curves(table, "p.csv", old));
  ASSERT_EQ(calibration.fits.size(), 2U);
  EXPECT_EQ(calibration.fits[0].points, 2);
  EXPECT_EQ(calibration.cluster.transfer.intra_node.at(65536), 5);
  EXPECT_DOUBLE_EQ(calibration.cluster.transfer.intra_node.at(1048576), 30) << "sqrt(60 x 15)";
  EXPECT_EQ(calibration.cluster.transfer.inter_node, Curve({{65536, 2}}));
  EXPECT_LE(calibration.fits[1].after.worst, 1e-9);
  const auto one = read_csv("payload_bytes,inter_node_gbps\n65536,2\n", "p.csv");
  EXPECT_EQ(calibrate(old, transfer_curves(one, "p.csv", old)).fits.size(), 1U);
  EXPECT_THAT(
      message_of([&] { transfer_curves(read_csv("payload_bytes,gbps\n1,2\n", "p.csv"), "p.csv", old); }),
      StartsWith(
          "p.csv:1: the table has no rate; name the columns payload_bytes,intra_node_gbps,inter_node_gbps"));
  EXPECT_THAT(message_of([&] {
                transfer_curves(read_csv("payload_bytes,intra_node_gbps\n9,201\n", "p.csv"), "p.csv", old);
              }),
              StartsWith("p.csv:2: a rate of 201 GB/s is above node.nvlink_gbps of h800, 200"));
  EXPECT_THAT(message_of([&] {
                transfer_curves(read_csv("payload_bytes,intra_node_gbps\n9,-1\n", "p.csv"), "p.csv", old);
              }),
              StartsWith("p.csv:2: intra_node_gbps -1 must be above 0"));
}

// The presets' own curves come from this table: they come out again.
TEST(Calibrate, AttentionFromTheTableOfThePreset) {
  const Cluster h800 = find_cluster("h800");
  const auto table = rows_of_gpu(validation_table("flash_attention_a800_h800"), "f.csv", "H800");
  const Calibration calibration = calibrate(h800, attention_curves(table, "f.csv", {32, 128, 1}, h800));
  ASSERT_EQ(calibration.cluster.attention.size(), h800.attention.size());
  for (std::size_t i = 0; i < h800.attention.size(); ++i) {
    const auto& before = h800.attention[i].tflops.points();
    const auto& after = calibration.cluster.attention[i].tflops.points();
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t j = 0; j < after.size(); ++j) {
      EXPECT_EQ(after[j].x, before[j].x);
      EXPECT_NEAR(after[j].y / before[j].y, 1, 1e-5) << "six digits";
    }
  }
  // Another head size stands beside them.
  const Calibration beside = calibrate(h800, attention_curves(table, "f.csv", {32, 64, 2}, h800));
  EXPECT_EQ(beside.cluster.attention.size(), 2 * h800.attention.size());
  EXPECT_EQ(reread(beside.cluster), beside.cluster);
}

TEST(Calibrate, AKernelTakesWhatWasMeasuredAndItsLaunch) {
  Cluster old = find_cluster("h800");
  old.gpu.kernel_launch_us = 0;
  const auto attention =
      read_csv("seq_len,mask,forward_milliseconds\n4096,causal,0.5\n8192,causal,1.8\n", "a.csv");
  const auto products = read_csv("m,n,k,milliseconds\n4096,4096,4096,0.25\n8192,4096,4096,0.4\n", "m.csv");
  const auto memory = read_csv("bytes,milliseconds\n1048576,0.002\n1073741824,0.36\n", "b.csv");
  std::vector<MeasuredCurve> curves = attention_curves(attention, "a.csv", {16, 128, 2}, old);
  ASSERT_EQ(curves.size(), 1U);
  curves.push_back(matmul_curve(products, "m.csv", old));
  curves.push_back(memory_curve(memory, "b.csv", old));
  const Calibration calibration = calibrate(old, curves);
  for (const CurveFit& fit : calibration.fits) {
    EXPECT_GT(fit.before.worst, 0.01) << fit.field;
    EXPECT_LE(fit.after.worst, 1e-9) << fit.field;
  }
  EXPECT_DOUBLE_EQ(calibration.cluster.matmul_efficiency.at(2.0 * 4096 * 4096 * 4096),
                   2.0 * 4096 * 4096 * 4096 / 0.25e-3 / 989e12);
  Cluster launching = calibration.cluster;
  launching.gpu.kernel_launch_us = 5;
  EXPECT_NEAR(curves[1].rows[0].predict_us(launching), 255, 1e-9);
  EXPECT_NEAR(curves[2].rows[0].predict_us(launching), 7, 1e-9);
}

TEST(Calibrate, ErrorsOfKernelsNameTheRow) {
  const Cluster h800 = find_cluster("h800");
  const auto attention = [&](const std::string& rows) {
    return message_of([&] {
      attention_curves(read_csv("seq_len,mask,forward_milliseconds\n" + rows, "a.csv"), "a.csv", {32, 128, 1},
                       h800);
    });
  };
  EXPECT_EQ(attention("4096,sliding,1\n"), "a.csv:2: unknown mask 'sliding'; use causal or full");
  EXPECT_THAT(attention("4096,full,1\n4096,full,0\n"),
              StartsWith("a.csv:3: forward_milliseconds 0 must be above 0"));
  EXPECT_THAT(attention("4096.5,full,1\n"), StartsWith("a.csv:2: seq_len 4096.5 must be a whole number"));
  EXPECT_THAT(attention("65536,full,1\n"),
              AllOf(StartsWith("a.csv:2: a rate of "), HasSubstr("above gpu.tflops_16 of h800, 989")));
  EXPECT_THAT(attention("65536,full,\n"),
              StartsWith("a.csv:2: the table has neither a column forward_milliseconds"));
  EXPECT_THAT(message_of([&] {
                memory_curve(read_csv("bytes,milliseconds\n1000000,1e-6\n", "b.csv"), "b.csv", h800);
              }),
              StartsWith("b.csv:2: a rate of 1e+06 GB/s is above gpu.hbm_gbps of h800, 3352"));
  EXPECT_THAT(
      message_of([&] { matmul_curve(read_csv("m,n,milliseconds\n1,1,1\n", "m.csv"), "m.csv", h800); }),
      StartsWith("m.csv:2: there is no column 'k'"));
  const auto both = read_csv("gpu,seq_len\nA800,1\nH800,1\n", "a.csv");
  EXPECT_EQ(message_of([&] { rows_of_gpu(both, "a.csv", ""); }),
            "a.csv: the table holds rows of A800, H800; add, for example, --gpu A800");
  EXPECT_EQ(message_of([&] { rows_of_gpu(both, "a.csv", "H100"); }),
            "a.csv: the table has no row of gpu H100; use one of A800, H800");
}

// ---- free parameters ----

constexpr const char* kCsvColumns = "gpu,heads,head_dim,batch,mask,pass,cp,seq_len,strategy,milliseconds\n";

// What the timeline says with the planted profile becomes a table, as if it had been measured.
std::string synthetic_table(const SoftwareProfile& planted, const Cluster& cluster) {
  std::string text = kCsvColumns;
  for (const char* pass : {"fwd", "bwd"}) {
    for (const int seq_len : {16384, 32768, 65536}) {
      for (const char* strategy : {"ring", "zigzag"}) {
        AttentionRequest request;
        request.problem.batch = 1;
        request.problem.q_len = request.problem.kv_len = seq_len;
        request.problem.q_heads = request.problem.kv_heads = 32;
        request.problem.head_dim = request.problem.v_head_dim = 128;
        request.problem.dtype = DType::bf16;
        request.problem.causal = true;
        request.ranks = first_ranks(4);
        request.strategy.balance =
            parse_balance(std::string(strategy) == "ring" ? "contiguous" : "head_tail");
        const bool backward = std::string(pass) == "bwd";
        const double us =
            estimate_attention(request, backward ? AttentionPass::backward : AttentionPass::forward, cluster,
                               planted)
                .time_us;
        text += str("H800,32,128,1,causal,", pass, ",4,", seq_len, ",", strategy, ",",
                    std::to_string(us / 1e3), "\n");
      }
    }
  }
  return text;
}

SoftwareFit fit(const std::string& text, const SoftwareProfile& software,
                const std::vector<std::string>& names, const RowFilter& filter = {}) {
  std::map<std::pair<std::string, int>, Cluster> sized;
  const auto rows = read_attention_times(read_csv(text, "r.csv"), "r.csv", filter,
                                         {{"H800", find_cluster("h800")}}, software, sized);
  return fit_software(software, names, rows, "r.csv");
}

// Four GPUs of h800 share a node; six digits of a millisecond lie far below the three digits of a fit.
TEST(FitSoftware, FindsPlantedParameters) {
  const SoftwareProfile start = find_software("ring-flash-attention");
  SoftwareProfile planted = start;
  planted.forward_progress = 0.37, planted.backward_progress = 0.62;
  const SoftwareFit found = fit(synthetic_table(planted, find_cluster("h800", 1)), start,
                                {"forward_progress", "backward_progress"});
  EXPECT_DOUBLE_EQ(found.software.forward_progress, 0.37);
  EXPECT_DOUBLE_EQ(found.software.backward_progress, 0.62);
  ASSERT_EQ(found.parameters.size(), 2U);
  for (const ParameterFit& parameter : found.parameters) {
    EXPECT_EQ(parameter.rows, 6) << "of its own pass";
    EXPECT_GT(parameter.before.median, 0.001);
    EXPECT_LE(parameter.after.worst, 1e-5);
    EXPECT_EQ(parameter.provenance, (Provenance{Origin::measured, "r.csv"}));
    EXPECT_EQ(find_source(found.software.sources, parameter.name)->provenance, parameter.provenance);
  }
  const SoftwareProfile reread = read_software(write_software(found.software), "mine.txtpb");
  EXPECT_EQ(reread, found.software);
}

TEST(FitSoftware, FindsParametersWithoutAnUpperEndInSight) {
  const SoftwareProfile start = find_software("ring-flash-attention");
  const Cluster cluster = find_cluster("h800", 1);
  SoftwareProfile planted = start;
  planted.merge_passes = 3.5;
  EXPECT_DOUBLE_EQ(fit(synthetic_table(planted, cluster), start, {"merge_passes"}).software.merge_passes,
                   3.5);
  planted = start;
  planted.kernel_issue_us = 2000;  // so long that the GPUs wait: a host that is ahead leaves no trace
  EXPECT_DOUBLE_EQ(
      fit(synthetic_table(planted, cluster), start, {"kernel_issue_us"}).software.kernel_issue_us, 2000);
}

TEST(FitSoftware, TakesTheRowsThatItIsTold) {
  const SoftwareProfile start = find_software("ring-flash-attention");
  const std::string text = synthetic_table(start, find_cluster("h800", 1));
  const auto rows = [&](const RowFilter& filter) {
    return fit(text, start, {"forward_progress"}, filter).parameters.at(0).rows;
  };
  EXPECT_EQ(rows({}), 6);
  EXPECT_EQ(rows({{{{"strategy", "ring"}}}, {}, 0}), 3);
  EXPECT_EQ(rows({{{{"pass", "fwd"}}}, {{{"strategy", "ring"}, {"seq_len", "16384"}}}, 0}), 5);
  // 16384 / 4 tokens x 32 heads x 128 x 2 tensors x 2 bytes
  EXPECT_EQ(rows({{}, {}, 67108864}), 6);
  EXPECT_EQ(rows({{}, {}, 67108865}), 4);
}

TEST(FitSoftware, ErrorsSayWhatWorks) {
  const SoftwareProfile start;
  const auto error = [&](const std::string& row, const std::string& name = "forward_progress",
                         const RowFilter& filter = {}) {
    return message_of([&] { fit(kCsvColumns + row, start, {name}, filter); });
  };
  const std::string good = "H800,8,128,1,causal,fwd,2,8192,zigzag,1\n";
  EXPECT_THAT(
      error(good, "forward_progres"),
      StartsWith("--fit forward_progres: there is no such parameter; the nearest one is 'forward_progress'"));
  EXPECT_EQ(error(good, "backward_progress"),
            "--fit backward_progress: none of the 1 rows depends on it; give rows of the pass that it is "
            "about, or leave it "
            "out");
  EXPECT_EQ(error("A800,8,128,1,causal,fwd,2,8192,zigzag,1\n"),
            "r.csv: the table has no row of gpu H800; use one of A800");
  EXPECT_THAT(error(good, "forward_progress", {{{{"cp", "16"}}}, {}, 0}),
              StartsWith("r.csv: --where, --except"));
  EXPECT_THAT(error(good, "forward_progress", {{{{"ranks", "16"}}}, {}, 0}),
              StartsWith("r.csv:2: there is no column 'ranks'"));
  EXPECT_EQ(error("H800,8,128,1,causal,fwd,2,8192,spiral,1\n"),
            "r.csv:2: unknown strategy 'spiral'; use ring, zigzag or stripe");
  EXPECT_EQ(error("H800,8,128,1,causal,forth,2,8192,ring,1\n"),
            "r.csv:2: unknown pass 'forth'; use fwd or bwd");
  EXPECT_THAT(error("H800,8,128,1,causal,fwd,2,8192,ring,0\n"),
              StartsWith("r.csv:2: milliseconds 0 must be above 0"));
  EXPECT_THAT(error("H800,8,128,1,causal,fwd,99999,8192,ring,1\n"),
              StartsWith("r.csv:2: cp 99999 is out of range"));
  EXPECT_THAT(message_of([&] {
                fit(kCsvColumns + good, start, {"merge_passes", "merge_passes"});
              }),
              StartsWith("--fit names merge_passes twice"));
}

}  // namespace
}  // namespace cp::sim
