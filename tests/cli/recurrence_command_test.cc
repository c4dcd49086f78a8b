// cpsim run and cpsim estimate with --recurrence, from the outside.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kShape = {"run", "--mesh",     "cp=4", "--key-heads", "4", "--value-heads",
                                         "8",   "--head-dim", "8",    "--backward"};
const std::vector<std::string> kRun = with(kShape, {"--recurrence", "delta", "--seq-len", "61"});

TEST(RecurrenceCommand, AllStrategiesAreExactOnAnOddLengthWithDocuments) {
  for (const char* const rule : {"delta", "decay"}) {
    const Finished finished = cpsim(with(kShape, {"--recurrence", rule, "--seq-len", "61", "--strategies",
                                                  "all", "--documents", "0/7/40/61", "--json"}));
    EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
    EXPECT_THAT(finished.err, IsEmpty());
    const auto report = nlohmann::json::parse(finished.out);
    EXPECT_EQ(report["strategies"].size(), 8U);  // four scans, contiguous and head_tail
    for (const auto& row : report["strategies"]) {
      EXPECT_EQ(row["exact"], true) << row;
      EXPECT_EQ(row["errors"].size(), 6U) << row;
      const bool padded = row["strategy"].get<std::string>().starts_with("heads");
      if (!padded) {
        EXPECT_EQ(row["forward"]["bytes_received"], row["forward"]["expected_bytes"]) << row;
      }
    }
  }
}

TEST(RecurrenceCommand, AScenarioSaysWhatTheFlagsSay) {
  const std::string path =
      (std::filesystem::temp_directory_path() / (std::to_string(getpid()) + "delta.txtpb")).string();
  const Finished saved = cpsim(with(kRun, {"--strategy", "sequential", "--save-scenario", path}));
  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  const Finished again = cpsim({"run", "--scenario", path});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  const std::string head = "delta seq 61, batch 1, heads 4/8, dims 8/8, f32 on cp=4, forward and backward";
  EXPECT_THAT(saved.out, HasSubstr(head));
  EXPECT_THAT(again.out, HasSubstr(head));
  EXPECT_THAT(again.out, HasSubstr("sequential contiguous"));
  std::filesystem::remove(path);
}

// Also one that a flag sets to its default.
TEST(RecurrenceCommand, FlagsOverrideAScenario) {
  const std::string path =
      (std::filesystem::temp_directory_path() / (std::to_string(getpid()) + "seeds.txtpb")).string();
  const Finished saved = cpsim(with(kRun, {"--seed", "5", "--schedule", "baton", "--save-scenario", path}));
  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  const Finished again =
      cpsim({"run", "--scenario", path, "--seed", "0", "--schedule", "parallel", "--save-scenario", path});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, ::testing::AllOf(::testing::Not(HasSubstr("seed")), ::testing::Not(HasSubstr("schedule")),
                                     HasSubstr("seq_len: 61")));
  std::filesystem::remove(path);
}

TEST(RecurrenceCommand, WhatHasNoMeaningIsRefusedByName) {
  const auto error = [](const std::vector<std::string>& more) {
    const Finished finished = cpsim(with(kRun, more));
    EXPECT_EQ(finished.exit_code, 2) << finished.out;
    return finished.err;
  };
  EXPECT_THAT(error({"--window", "3"}), HasSubstr("--window is of attention"));
  EXPECT_THAT(error({"--kv-heads", "2"}), HasSubstr("use --key-heads (of q and k) and --value-heads"));
  EXPECT_THAT(error({"--padding"}), HasSubstr("--padding is of attention"));
  EXPECT_THAT(error({"--strategy", "seqential"}), HasSubstr("the nearest is sequential"));
  EXPECT_THAT(error({"--documents", "0/7/60"}), HasSubstr("end at 61"));
  EXPECT_THAT(error({"--balance", "striped:2"}), HasSubstr("use strategy heads"));
  const Finished large = cpsim(with(kShape, {"--recurrence", "delta", "--seq-len", "1000000000000"}));
  EXPECT_EQ(large.exit_code, 2);
  EXPECT_THAT(large.err, HasSubstr("of memory are free; use --seq-len"));
  // A state alone takes 8 TB, forward, too.
  const Finished wide =
      cpsim({"run", "--mesh", "cp=4", "--recurrence", "delta", "--seq-len", "53", "--head-dim", "1000000"});
  EXPECT_EQ(wide.exit_code, 2);
  EXPECT_THAT(wide.err, HasSubstr("of memory are free; use fewer heads, or a smaller --head-dim"));
  const Finished heads = cpsim({"run", "--mesh", "cp=2", "--seq-len", "8", "--key-heads", "2"});
  EXPECT_THAT(heads.err, HasSubstr("add --recurrence delta or decay"));
}

TEST(RecurrenceCommand, AnEstimateComparesTheStrategies) {
  const std::vector<std::string> asked = {
      "estimate",     "--cluster",  "dgx-h100",  "--mesh",  "cp=8",        "--recurrence", "delta",
      "--strategies", "all",        "--seq-len", "131072",  "--key-heads", "16",           "--value-heads",
      "32",           "--head-dim", "128",       "--dtype", "bf16"};
  const Finished finished = cpsim(with(asked, {"--pass", "both", "--json"}));
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const auto rows = nlohmann::json::parse(finished.out)["strategies"];
  ASSERT_EQ(rows.size(), 8U);
  double before = 0;
  for (const auto& row : rows) {
    const double us = row["forward"]["time_us"].get<double>() + row["backward"]["time_us"].get<double>();
    EXPECT_GE(us, before) << "the fastest stands first";
    before = us;
  }
  EXPECT_THAT(cpsim(asked).out, HasSubstr("no plan takes measured rates yet"));
  const auto backward = nlohmann::json::parse(cpsim(with(asked, {"--pass", "backward", "--json"})).out);
  EXPECT_FALSE(backward["strategies"][0].contains("forward"));
  EXPECT_TRUE(backward["strategies"][0].contains("backward"));
  const Finished attention = cpsim(
      {"estimate", "--cluster", "dgx-h100", "--mesh", "cp=8", "--seq-len", "8192", "--strategies", "all"});
  EXPECT_EQ(attention.exit_code, 2);
  EXPECT_THAT(attention.err, HasSubstr("use --strategy with one of attention's"));
}

}  // namespace
}  // namespace cp::cli
