// cpsim estimate --trace, from the outside.
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"
#include "tests/cli/json_file.h"
#include "traces/perfetto_subset.pb.h"

namespace cp::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Finished traced(const std::string& path, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"estimate",   "--cluster",  "a800",      "--mesh",  "cp=4",
                                    "--strategy", "ring",       "--seq-len", "8192",    "--q-heads",
                                    "8",          "--head-dim", "128",       "--dtype", "bf16",
                                    "--causal",   "--json",     "--trace",   path};
  words.insert(words.end(), more.begin(), more.end());
  return cpsim(words);
}

double end_us(const json& trace, const std::string& name) {
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == name) return event["ts"].get<double>() + event["dur"].get<double>();
  }
  ADD_FAILURE() << "no event " << name;
  return 0;
}

TEST(EstimateTrace, ChromesFileIsAsLongAsTheEstimate) {
  const TemporaryFolder folder;
  const Finished finished = traced(folder.file("all.json"));
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json trace = read_json(folder.file("all.json"));
  EXPECT_EQ(trace["otherData"], (json{{"backend", "simulated"}, {"world_size", 4}}));
  EXPECT_NEAR(end_us(trace, "forward"), json::parse(finished.out)["time_us"].get<double>(), 1)
      << "up to a whole us";
}

TEST(EstimateTrace, BothPassesOneAfterAnother) {
  const TemporaryFolder folder;
  const Finished finished = traced(folder.file("all.json"), {"--pass", "both"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json times = json::parse(finished.out);
  EXPECT_NEAR(end_us(read_json(folder.file("all.json")), "backward"),
              times["forward"]["time_us"].get<double>() + times["backward"]["time_us"].get<double>(), 2);
}

TEST(EstimateTrace, AFolderHasAFileForEachRank) {
  const TemporaryFolder folder;
  const Finished finished = traced(folder.file("new/ranks/"));
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  for (int rank = 0; rank < 4; ++rank) {
    const json trace = read_json(folder.file("new/ranks/rank_" + std::to_string(rank) + ".json"));
    EXPECT_EQ(trace["distributedInfo"], (json{{"backend", "simulated"}, {"rank", rank}, {"world_size", 4}}));
    EXPECT_EQ(trace["deviceProperties"].size(), 8U);
  }
}

TEST(EstimateTrace, PerfettosFileDecodes) {
  const TemporaryFolder folder;
  const Finished finished = traced(folder.file("all.pftrace"));
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  std::ifstream file(folder.file("all.pftrace"), std::ios::binary);
  proto::perfetto::Trace trace;
  EXPECT_TRUE(trace.ParseFromIstream(&file));
  EXPECT_GT(trace.packet_size(), 4 * 2);
}

TEST(EstimateTrace, AnEstimateIsTheSameWithoutATrace) {
  const TemporaryFolder folder;
  std::vector<std::string> words = {"estimate", "--cluster", "a800", "--mesh",    "cp=4",  "--strategy",
                                    "ring",     "--seq-len", "8192", "--q-heads", "8",     "--head-dim",
                                    "128",      "--dtype",   "bf16", "--causal",  "--json"};
  EXPECT_EQ(cpsim(words).out, traced(folder.file("all.json")).out);
}

TEST(EstimateTrace, WhatCannotBeWrittenIsRefused) {
  const TemporaryFolder folder;
  const Finished unknown = traced(folder.file("trace.txt"));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.out, IsEmpty());
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("trace.txt does not say its format"), HasSubstr("NAME.json")));
  const Finished nowhere = traced(folder.file("missing/all.json"));
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, AllOf(HasSubstr("cannot be written"), HasSubstr("No such file")));
  const Finished collective = cpsim({"estimate", "--cluster", "a800", "--collective", "all_gather", "--bytes",
                                     "1MiB", "--trace", folder.file("all.json")});
  EXPECT_EQ(collective.exit_code, 2);
  EXPECT_THAT(collective.err,
              AllOf(HasSubstr("--collective all_gather"), HasSubstr("leave one of them out")));
}

}  // namespace
}  // namespace cp::cli
