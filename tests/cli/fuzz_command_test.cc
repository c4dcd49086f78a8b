// cpsim fuzz and cpsim replay, from the outside.
#include <csignal>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;

const std::string kCanary = "tests/corpus/canary/";

std::string first_of(const std::string& folder) {
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txtpb" && (first.empty() || entry.path().string() < first))
      first = entry.path().string();
  }
  return first;
}

TEST(FuzzCommand, RunsSoManyCasesAndSaysSo) {
  const TemporaryFolder folder;
  const Finished finished =
      cpsim({"fuzz", "--cases", "60", "--seed", "3", "--target", "redistribute", "--jobs", "2", "--corpus",
             folder.file("corpus"), "--failures", folder.file("failures"), "--json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const auto report = nlohmann::json::parse(finished.out);
  EXPECT_EQ(report["cases"], 60);
  EXPECT_EQ(report["failure"], nullptr);
  EXPECT_GT(report["new_in_corpus"], 0);
  EXPECT_GT(report["cells"], report["cells_covered"]);
  // What entered the corpus replays, to one digest.
  const std::string kept = first_of(folder.file("corpus"));
  const Finished once = cpsim({"replay", kept}), again = cpsim({"replay", kept});
  EXPECT_EQ(once.exit_code, 0) << once.out << once.err;
  EXPECT_EQ(once.out, again.out);
  EXPECT_THAT(once.out, HasSubstr("digest "));
}

TEST(FuzzCommand, WritesAFailureAndTheCommandThatReplaysIt) {
  const TemporaryFolder folder;
  // A corpus whose case is wrong on purpose.
  std::filesystem::create_directories(folder.file("corpus"));
  std::filesystem::copy(first_of(kCanary), folder.file("corpus"));
  const Finished finished = cpsim({"fuzz", "--cases", "1", "--seed", "1", "--corpus", folder.file("corpus"),
                                   "--failures", folder.file("failures"), "--shrink-time", "1s"});
  EXPECT_EQ(finished.exit_code, 1) << finished.out << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("replay it: cpsim replay "));
  const Finished replayed = cpsim({"replay", first_of(folder.file("failures"))});
  EXPECT_EQ(replayed.exit_code, 1) << replayed.out << replayed.err;
}

TEST(FuzzCommand, PrintsCasesWithoutRunningThem) {
  const Finished finished = cpsim({"fuzz", "--print", "3", "--seed", "8"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, HasSubstr("# case 2 of seed 8\n"));
  EXPECT_THAT(finished.out, HasSubstr("proto-message: cp.proto.FuzzCase"));
  EXPECT_EQ(finished.out, cpsim({"fuzz", "--print", "3", "--seed", "8"}).out);
}

TEST(FuzzCommand, EndsCleanlyOnCtrlC) {
  const TemporaryFolder folder;
  CpsimProcess process(
      {"fuzz", "--time", "1h", "--target", "redistribute", "--jobs", "1", "--failures", folder.file("f")},
      CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text("of the table"));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 130) << finished.out << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("cases"));
}

TEST(FuzzCommand, SaysWhatIsWrongWithItsFlags) {
  EXPECT_THAT(cpsim({"fuzz", "--time", "soon"}).err,
              HasSubstr("--time soon is not a time; use, for example, 60s"));
  EXPECT_THAT(cpsim({"fuzz", "--target", "redistributes"}).err, HasSubstr("use one of redistribute"));
  EXPECT_THAT(cpsim({"fuzz", "--corpus", "/dev/null/none"}).err, HasSubstr("--corpus /dev/null/none"));
  EXPECT_EQ(cpsim({"fuzz", "--cases", "0"}).exit_code, 2);
}

TEST(ReplayCommand, EveryCanaryFails) {
  for (const auto& entry : std::filesystem::directory_iterator(kCanary)) {
    const Finished finished = cpsim({"replay", entry.path().string(), "--json"});
    EXPECT_EQ(finished.exit_code, 1) << entry.path();
    EXPECT_NE(nlohmann::json::parse(finished.out)["finding"], nullptr);
  }
}

TEST(ReplayCommand, SaysWhereAFileIsWrong) {
  EXPECT_THAT(cpsim({"replay", "/missing.txtpb"}).err, HasSubstr("/missing.txtpb"));
  EXPECT_EQ(cpsim({"replay", "README.md"}).exit_code, 2);
}

}  // namespace
}  // namespace cp::cli
