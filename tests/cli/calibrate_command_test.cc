// cpsim calibrate, from the outside.
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Eight GPUs; the rate of the second row is that of 1 GiB in 5 ms.
constexpr const char* kAllGather =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    "    67108864       2097152     float    none      -1   400.00  167.77  146.80      0\n"
    "  1073741824      33554432     float    none      -1  5000.00  214.75  187.90      0\n"
    "# Avg bus bandwidth    : 167.35\n";

double estimate_us(const std::string& cluster, const std::string& bytes) {
  const Finished finished = cpsim({"estimate", "--cluster", cluster, "--collective", "all_gather", "--bytes",
                                   bytes, "--gpus", "8", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  return nlohmann::json::parse(finished.out)["time_us"];
}

TEST(CalibrateCommand, WritesAClusterThatEstimatesDifferently) {
  const TemporaryFolder folder;
  const std::string in = folder.file("ag.txt"), out = folder.file("mine.txtpb");
  write(in, kAllGather);
  const Finished finished =
      cpsim({"calibrate", "--cluster", "h800", "--nccl-tests", "all_gather=" + in, "--gpus", "8", "-o", out});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, IsEmpty());
  EXPECT_THAT(finished.out, HasSubstr("all_gather, 8 GPUs of 1 node"));
  EXPECT_THAT(finished.out, HasSubstr("0.0 % / 0.0 %"));
  EXPECT_THAT(finished.out, HasSubstr("measured: " + in));
  EXPECT_THAT(finished.out, HasSubstr("wrote " + out));
  EXPECT_DOUBLE_EQ(estimate_us(out, "1GiB"), 5000);
  EXPECT_NE(estimate_us("h800", "1GiB"), 5000);
}

TEST(CalibrateCommand, PrintsJsonAndWritesNothingWithoutOut) {
  const TemporaryFolder folder;
  const std::string in = folder.file("memory.csv");
  write(in, "bytes,milliseconds\n1073741824,0.4\n");
  const Finished finished =
      cpsim({"calibrate", "--cluster", "h800", "--memory", in, "--name", "mine", "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json["cluster"], "mine");
  ASSERT_EQ(json["curves"].size(), 1U);
  EXPECT_EQ(json["curves"][0]["field"], "memory_efficiency");
  EXPECT_EQ(json["curves"][0]["points"], 1);
  EXPECT_EQ(json["curves"][0]["origin"], "measured");
  EXPECT_EQ(json["curves"][0]["source"], in);
  EXPECT_GT(json["curves"][0]["before"]["median"], json["curves"][0]["after"]["median"]);
  EXPECT_THAT(json["parameters"], IsEmpty());
}

TEST(CalibrateCommand, FitsASoftwareProfile) {
  const TemporaryFolder folder;
  const std::string in = folder.file("rows.csv"), out = folder.file("mine.txtpb");
  write(in,
        "gpu,heads,head_dim,batch,mask,pass,cp,seq_len,strategy,milliseconds\n"
        "H800,32,128,1,causal,fwd,16,65536,zigzag,25\n"
        "H800,32,128,1,causal,fwd,64,65536,zigzag,12\n"
        "A800,32,128,1,causal,fwd,16,65536,zigzag,40\n");
  const Finished finished = cpsim({"calibrate", "--cluster", "h800", "--gpu", "H800", "--rows", in, "--where",
                                   "cp=16", "--software", "ring-flash-attention", "--fit",
                                   "forward_progress,kernel_issue_us", "--software-output", out, "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  ASSERT_EQ(json["parameters"].size(), 2U);
  EXPECT_EQ(json["parameters"][0]["name"], "forward_progress");
  EXPECT_EQ(json["parameters"][0]["rows"], 1);
  EXPECT_LE(json["parameters"][0]["after"]["median"], json["parameters"][0]["before"]["median"]);
  const Finished estimate =
      cpsim({"estimate", "--cluster", "h800", "--mesh", "cp=16", "--strategy", "ring", "--seq-len", "65536",
             "--q-heads", "32", "--head-dim", "128", "--dtype", "bf16", "--causal", "--software", out});
  EXPECT_EQ(estimate.exit_code, 0) << estimate.err;
  EXPECT_THAT(estimate.out, HasSubstr("software mine"));
}

TEST(CalibrateCommand, BadUsageSaysWhatWorks) {
  const TemporaryFolder folder;
  const std::string in = folder.file("ag.txt");
  write(in, kAllGather);
  const auto error = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "calibrate");
    const Finished finished = cpsim(arguments);
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error({"--nccl-tests", "all_gather=" + in}),
              HasSubstr("--cluster is missing; use one of a100-pcie"));
  EXPECT_THAT(error({"--cluster", "h800"}),
              HasSubstr("there is nothing to calibrate from; add --nccl-tests"));
  EXPECT_THAT(error({"--cluster", "h800", "--nccl-tests", in}),
              HasSubstr("does not have the form NAME=VALUE"));
  EXPECT_THAT(error({"--cluster", "h800", "--nccl-tests", "all_gather=" + in}),
              HasSubstr("add, for example, --gpus 8"));
  EXPECT_THAT(error({"--cluster", "h800", "--nccl-tests", "all_reduce=" + in, "--gpus", "8"}),
              HasSubstr("ag.txt:2: busbw 146.8 is not 1.75 times algbw 167.77"));
  EXPECT_THAT(error({"--cluster", "h800", "--nccl-tests", "all_gather=nowhere.txt", "--gpus", "8"}),
              HasSubstr("cannot read the output of nccl-tests nowhere.txt"));
  EXPECT_THAT(error({"--cluster", "h800", "--memory", in, "-o", "mine"}), HasSubstr("use mine.txtpb"));
  EXPECT_THAT(error({"--cluster", "h800", "--attention", in}),
              HasSubstr("add, for example, --q-heads 32 --head-dim 128"));
  EXPECT_THAT(error({"--cluster", "h800", "--rows", in}),
              HasSubstr("--rows, --fit and --software go together"));
  EXPECT_THAT(error({"--cluster", "h800", "--nccl-tests", "all_gather=" + in, "--gpus", "8", "-o",
                     folder.file("no/such/folder.txtpb")}),
              HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace cp::cli
