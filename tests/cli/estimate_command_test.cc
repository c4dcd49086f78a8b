// cpsim estimate and cpsim validate, from the outside.
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kRing = {"estimate",   "--cluster", "a800",      "--mesh",     "cp=16",
                                        "--strategy", "ring",      "--balance", "none",       "--seq-len",
                                        "65536",      "--q-heads", "32",        "--kv-heads", "32",
                                        "--head-dim", "128",       "--dtype",   "bf16",       "--causal"};

TEST(EstimateCommand, PrintsFiguresForScripts) {
  const Finished finished = cpsim(with(
      kRing, {"--pass", "backward", "--dkv-dtype", "f32", "--software", "ring-flash-attention", "--json"}));
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json["cluster"], "a800");
  EXPECT_EQ(json["nodes"], 2);
  EXPECT_EQ(json["pass"], "backward");
  const double time_us = json["time_us"];
  EXPECT_GT(time_us, 100e3);
  EXPECT_LT(time_us, 200e3);  // measured: 150 ms
  EXPECT_LT(json["interval_us"][0], time_us);
  EXPECT_GT(json["interval_us"][1], time_us);
  EXPECT_LE(json["exposed_comm_us"], time_us);
  // 15 hops of K and V in bf16, and 15 of their gradients in f32.
  EXPECT_EQ(json["bytes_received"], std::int64_t{15} * (2 + 4) * 2 * 4096 * 32 * 128);
  EXPECT_GT(json["peak_bytes"], 0);
}

TEST(EstimateCommand, DkvInTheInputDtypeMovesLess) {
  const auto bytes = [](const std::string& dtype) {
    const Finished finished = cpsim(with(kRing, {"--pass", "backward", "--dkv-dtype", dtype, "--json"}));
    return nlohmann::json::parse(finished.out)["bytes_received"].get<std::int64_t>();
  };
  EXPECT_LT(bytes("input"), bytes("f32"));
}

TEST(EstimateCommand, SaysWhereTheTimeGoes) {
  const Finished finished = cpsim(with(kRing, {"--pass", "both"}));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("forward"));
  EXPECT_THAT(finished.out, HasSubstr("backward"));
  EXPECT_THAT(finished.out, HasSubstr("critical path: "));
}

TEST(EstimateCommand, CollectivesFollowTheirMeasurements) {
  const Finished finished = cpsim({"estimate", "--cluster", "hgx-b200", "--collective", "all_gather",
                                   "--bytes", "1GiB", "--gpus", "16", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_NEAR(json["time_us"].get<double>(), 3360.46, 0.01);
  EXPECT_EQ(json["origin"], "measured");
  EXPECT_EQ(json["by"], "curve");
}

TEST(EstimateCommand, BadInputNamesTheFlagAndWhatWorks) {
  const auto error = [](const std::vector<std::string>& arguments) {
    const Finished finished = cpsim(with({"estimate"}, arguments));
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error({"--mesh", "cp=4", "--seq-len", "64"}),
              HasSubstr("--cluster is missing; use one of a100-pcie"));
  EXPECT_THAT(error({"--cluster", "dgx-h10", "--mesh", "cp=4", "--seq-len", "64"}), HasSubstr("dgx-h100"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--mesh", "cp=16", "--seq-len", "64", "--nodes", "1"}),
              HasSubstr("use --nodes 2"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--collective", "scan", "--bytes", "1MiB"}),
              HasSubstr("--collective scan is unknown; use one of all_gather"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--collective", "gather", "--bytes", "1MiB"}),
              HasSubstr("--collective gather is unknown; the nearest one is all_gather; use one of"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--collective", "sendrecv", "--bytes", "1MiB"}),
              HasSubstr("--collective sendrecv is unknown; the nearest one is send_recv; use one of"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--collective", "all_gather", "--bytes", "x"}),
              HasSubstr("--bytes x"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--collective", "all_gather", "--bytes", "1", "--gpus", "16",
                     "--nodes", "1"}),
              HasSubstr("use --nodes 2"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--mesh", "cp=2", "--seq-len", "64", "--pass", "sideways"}),
              HasSubstr("use forward, backward or both"));
}

// Of numbers of GPUs that 32 bits do not hold, and of the first ones beyond what can be numbered.
TEST(EstimateCommand, AClusterBeyondAllNumbersOfGpusIsRefused) {
  const TemporaryFolder folder;
  const auto error = [](const std::vector<std::string>& more) {
    const Finished finished = cpsim(with({"estimate"}, more));
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  const std::vector<std::string> attention = {"--cluster", "dgx-h100", "--mesh",    "cp=8",
                                              "--q-heads", "8",        "--seq-len", "1024"};
  const std::vector<std::string> gather = {"--cluster",  "dgx-h100", "--collective",
                                           "all_gather", "--bytes",  "1KiB"};
  for (const auto& words : {attention, gather}) {
    EXPECT_THAT(
        error(with(words, {"--nodes", "2147483647"})),
        HasSubstr("nodes: 2147483647 nodes of 8 GPUs are 17179869176 GPUs, and at most 16777216 can be "
                  "numbered; use at most 2097152"));
    EXPECT_THAT(error(with(words, {"--nodes", "2097153"})), HasSubstr("use at most 2097152"));
    EXPECT_THAT(error(with(words, {"--nodes", "2147483648"})),
                HasSubstr("--nodes 2147483648 is out of range"));
  }
  EXPECT_THAT(error(with(gather, {"--gpus", "2147483647"})),
              HasSubstr("--gpus 2147483647 is out of range; use 1 to 16777216"));
  EXPECT_THAT(error({"--cluster", "dgx-h100", "--mesh", "cp=2@0/2147483647", "--seq-len", "64"}),
              HasSubstr("use 0 to 16777215"));
  std::ofstream(folder.file("mine.txtpb")) << "name: \"mine\"\nlike: \"dgx-h100\"\nnodes: 2097153\n";
  EXPECT_THAT(
      error({"--cluster", folder.file("mine.txtpb"), "--mesh", "cp=2", "--seq-len", "64", "--nodes", "0"}),
      HasSubstr("--nodes 0 is out of range"));
  EXPECT_THAT(error({"--cluster", folder.file("mine.txtpb"), "--mesh", "cp=2", "--seq-len", "64"}),
              HasSubstr("mine.txtpb:3:1: nodes: 2097153 nodes of 8 GPUs are 16777224 GPUs"));
  // The largest one is a cluster like any other.
  EXPECT_EQ(cpsim(with({"estimate"}, with(gather, {"--nodes", "2097152"}))).exit_code, 0);
}

TEST(EstimateCommand, SendRecvAndEveryCollectiveHaveAnInterval) {
  for (const char* kind :
       {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv"}) {
    const Finished finished =
        cpsim({"estimate", "--cluster", "dgx-h100", "--collective", kind, "--bytes", "64MiB", "--json"});
    ASSERT_EQ(finished.exit_code, 0) << finished.err;
    const auto json = nlohmann::json::parse(finished.out);
    const double us = json.at("time_us");
    EXPECT_LT(json.at("interval_us").at(0).get<double>(), us) << kind;
    EXPECT_GT(json.at("interval_us").at(1).get<double>(), us) << kind;
    // The all-reduce was measured, pairs are borrowed from the H800, the rest follows from the links.
    EXPECT_EQ(json.at("origin"), kind == std::string("all_reduce")  ? "measured"
                                 : kind == std::string("send_recv") ? "borrowed"
                                                                    : "estimated")
        << kind;
    EXPECT_FALSE(json.at("by").get<std::string>().empty()) << kind;
  }
}

TEST(EstimateCommand, OneGpuAloneMovesNothing) {
  const Finished finished = cpsim(
      {"estimate", "--cluster", "dgx-h100", "--collective", "all_to_all", "--bytes", "1GiB", "--gpus", "1"});
  EXPECT_THAT(finished.out, HasSubstr("over 1 GPU of dgx-h100: 0 us (nothing moves)"));
}

TEST(ValidateCommand, MeetsItsTargets) {
  const Finished finished =
      cpsim({"validate", "ring_flash_attention", "nccl_tests_large", "nccl_tests_medium",
             "nccl_algebra_large", "nccl_algebra_medium", "nccl_algebra_small"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out;
  EXPECT_THAT(finished.out, ::testing::Not(HasSubstr("MISSED")));
  EXPECT_THAT(finished.out, HasSubstr("not scored"));
}

TEST(ValidateCommand, JsonHasIntervalsChoicesAndExclusions) {
  const Finished finished = cpsim({"validate", "usp", "--json"});
  ASSERT_EQ(finished.exit_code, 0) << finished.out;
  const auto json = nlohmann::json::parse(finished.out);
  const auto& table = json.at("tables").at(0);
  EXPECT_EQ(table.at("table"), "usp");
  EXPECT_TRUE(table.at("is_an_answer").get<bool>());
  EXPECT_LT(table.at("out_of_sample").at("signed_median").get<double>(), 0);
  EXPECT_GT(table.at("coverage").at("rows").get<int>(), 100);
  EXPECT_EQ(table.at("rules").size(), 2U);
  EXPECT_EQ(table.at("exclusions").size(), 2U);
  EXPECT_EQ(table.at("choices").at("groups"), 11);
  for (const auto& row : table.at("rows")) EXPECT_EQ(row.at("interval").size(), 2U);
  EXPECT_GT(json.at("widths").at(0).at("residuals").get<int>(), 100) << "pairs of rows by two strategies";
  EXPECT_EQ(json.at("coverage").at("rows"), table.at("coverage").at("rows"));
}

TEST(ValidateCommand, ThePageIsOfAllTables) {
  const Finished finished = cpsim({"validate", "usp", "--markdown", "page.md"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(
      finished.err,
      HasSubstr("--markdown writes a page of all tables, so it takes no names of tables; leave out usp"));
  const Finished nowhere = cpsim({"validate", "--markdown", "/no/such/folder/page.md"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("cannot be written"));
}

TEST(EstimateCommand, SaysThatGpusWaitForTheHost) {
  const Finished finished =
      cpsim({"estimate", "--cluster", "dgx-a100", "--mesh", "cp=8", "--strategy", "ring", "--seq-len", "1024",
             "--q-heads", "8", "--head-dim", "128", "--dtype", "bf16", "--software", "ring-flash-attention"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("wait for the host, which issues a call in"));
}

TEST(ValidateCommand, AnUnknownTableNamesThoseThereAre) {
  const Finished finished = cpsim({"validate", "usq"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("use one of ring_attention_forward"));
}

}  // namespace
}  // namespace cp::cli
