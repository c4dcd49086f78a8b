// cprun profile on CPUs.
#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> profile(const TemporaryFolder& folder, const char* ranks) {
  return {"profile",
          "--backend",
          "gloo",
          "--grid",
          "tiny",
          "--nproc-per-node",
          ranks,
          "--cluster",
          "generic",
          "--output",
          folder.file("mine.txtpb")};
}

TEST(CprunProfile, OfOneRankIsAClusterAndSoftwareThatCpsimReads) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun(profile(folder, "1"));
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("1 of 14: attention forward full 32 x 2 heads (1 kv) x 16: "),
                             HasSubstr("(6 curves)"), HasSubstr("(14 points)"),
                             HasSubstr("mine.software.txtpb (kernel_issue_us, merge_passes, pack_passes)")));
  EXPECT_TRUE(std::filesystem::exists(folder.file("mine.csv")));
  const cli::Finished estimate =
      cli::cpsim({"estimate", "--cluster", folder.file("mine.txtpb"), "--software",
                  folder.file("mine.software.txtpb"), "--mesh", "cp=2", "--seq-len", "4096"});
  EXPECT_EQ(estimate.exit_code, 0) << estimate.err;
}

TEST(CprunProfile, InterruptedKeepsWhatItHas) {
  const TemporaryFolder folder;
  std::vector<std::string> argv = profile(folder, "4");
  argv.insert(argv.begin(), built("cprun"));
  Program program(argv);
  ASSERT_TRUE(within(std::chrono::seconds(30),
                     [&] { return program.read("out").find("1 of 64") != std::string::npos; }));
  program.signal(SIGINT);
  const ProgramEnd end = program.finish();
  EXPECT_EQ(end.exit_code, 128 + SIGINT) << end.err;
  EXPECT_THAT(end.out,
              AllOf(HasSubstr("wrote " + folder.file("mine.txtpb")), ::testing::Not(HasSubstr("64 of 64"))));
  EXPECT_TRUE(std::filesystem::exists(folder.file("mine.csv")));
}

TEST(CprunProfile, SaysWhatItCannotDoFirst) {
  const TemporaryFolder folder;
  const auto expect_refused = [](std::vector<std::string> arguments, const std::string& message) {
    arguments.insert(arguments.begin(), {"profile", "--backend", "gloo"});
    const ProgramEnd end = cprun(arguments);
    EXPECT_EQ(end.exit_code, 2) << end.err;
    EXPECT_THAT(end.err, HasSubstr(message));
  };
  expect_refused({"--out", "mine.json"}, "--output mine.json does not end in .txtpb");
  expect_refused({"--out", folder.file("missing/mine.txtpb")}, "cannot be written: ");
  expect_refused({"--grid", "huge"}, "--grid huge is unknown; use tiny, quick or whole");
  expect_refused({"--cluster", "dgx-h1000"}, "dgx-h100");
  expect_refused({"--", "true"}, "cprun profile runs no program");
}

}  // namespace
}  // namespace cp::testing
