// cprun with scenarios: what the ranks do is what the simulated fabric does, and what cannot run is said
// before anything starts.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"

namespace cp::testing {
namespace {

using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CprunScenario, AttentionForwardAndBackwardIsTheFabrics) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--nproc-per-node", "4", "--verify", ring(folder)});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("[rank 0] 4 ranks on gloo: "),
                             HasSubstr("the results equal those of one device\n"),
                             HasSubstr("\nidentical: 4 ranks, ")));
  EXPECT_THAT(end.err, IsEmpty());
}

// There is nothing to move, and both did just that.
TEST(CprunScenario, ATensorWithoutElementsIsIdentical) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      cprun({"--verify",
             scenario(folder, R"txt(redistribute { mesh: "dp=4" shape: "0" from: "S(0)" to: "R" })txt")});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, HasSubstr("\nidentical: "));
}

TEST(CprunScenario, ChecksumsOfPayloadsAreCompared) {
  const TemporaryFolder folder;
  for (const char* flag : {"--checksums", "--checksums=end", "--checksums=each"}) {
    const ProgramEnd end = cprun({"--nproc-per-node", "4", "--verify", flag, ring(folder)});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_THAT(end.out, AllOf(HasSubstr("; every payload arrived as it was sent\n"),
                               HasSubstr("\nidentical: 4 ranks, ")));
  }
  for (const auto& [arguments, message] :
       {std::pair(std::vector<std::string>{"--checksums=often", ring(folder)}, "use end, each or off"),
        std::pair(std::vector<std::string>{"--checksums", "--backend", "nccl", ring(folder)},
                  "--backend gloo"),
        std::pair(std::vector<std::string>{"--checksums", "--", "true"}, "JoinedDeviceOptions::checksums")}) {
    const ProgramEnd end = cprun(arguments);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.err, HasSubstr(message));
  }
}

// Documents of each batch entry, Megatron's order, lse at home, and queries that learn alone.
TEST(CprunScenario, AttentionAsItIsAskedForIsTheFabrics) {
  const TemporaryFolder folder;
  for (const char* strategy : {"ulysses_ring", "double_ring", "pass_q"}) {
    const std::string path = scenario(
        folder,
        str("run { mesh: \"cp=4\" strategy: \"", strategy,
            "\" balance: \"head_tail_exchange\" seq_len: 61 batch: 2 q_heads: 4 kv_heads: 2 head_dim: 16 "
            "causal: true documents: \"0/7/7/50;0/30/61\" format: \"sbhd\" backward: true "
            "gradients: \"dq\" lse: \"home\" }"));
    const ProgramEnd end = cprun({"--verify", path});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_THAT(end.out, AllOf(HasSubstr("the results equal those of one device\n"),
                               HasSubstr("\nidentical: 4 ranks, ")));
  }
}

TEST(CprunScenario, ARedistributionOnAMeshWithItsRanksNamedIsTheFabrics) {
  const TemporaryFolder folder;
  const std::string path =
      scenario(folder, R"x(redistribute { mesh: "dp=2,tp=4@0/4/1/5/2/6/3/7" shape: "13x8" dtype: f32
                           from: "S(0),P(sum)" to: "S(0),R" })x");
  // As many processes as the scenario needs, where nobody says how many.
  const ProgramEnd end = cprun({"--verify", path});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("8 ranks on gloo: "), HasSubstr("\nidentical: 8 ranks, ")));
  EXPECT_THAT(end.err, IsEmpty());
}

// Ranks 0 and 2 have no part, on the fabric nor here.
TEST(CprunScenario, AMeshMayLeaveRanksOut) {
  const TemporaryFolder folder;
  const std::string path = scenario(
      folder, R"(run { mesh: "cp=2@3/1" seq_len: 50 q_heads: 2 kv_heads: 2 head_dim: 16 causal: true })");
  const ProgramEnd end = cprun({"--verify", path});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("4 ranks on gloo: "), HasSubstr("\nidentical: 2 ranks, ")));
}

#ifdef __SANITIZE_ADDRESS__
// A length; a second or more on two ranks, which need nothing of one another meanwhile.
constexpr int kSecondsOfWork = 4000;
#else
constexpr int kSecondsOfWork = 18000;
#endif

// Rank 0 has no part, and waits for longer than the time after which a silent rank is lost.
TEST(CprunScenario, WaitsForWhoeverHasMoreToDo) {
  const TemporaryFolder folder;
  const std::string path = scenario(folder, str(R"(run { mesh: "cp=2@1/2" strategy: "all_gather" seq_len: )",
                                                kSecondsOfWork, R"( q_heads: 4 kv_heads: 4 head_dim: 64 })"));
  const auto begin = std::chrono::steady_clock::now();
  const ProgramEnd end = cprun({"--timeout", "1", path});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_GT(end.when - begin, std::chrono::seconds(1)) << "too little work to show anything";
}

TEST(CprunScenario, TracesTakeNothingElseAway) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("run.cptrace.ranks"));
  std::ofstream(folder.file("run.cptrace.ranks/thesis.txt")) << "of years";
  EXPECT_EQ(cprun({"--trace", folder.file("run.cptrace"), ring(folder)}).exit_code, 0);
  EXPECT_EQ(read(folder.file("run.cptrace.ranks/thesis.txt")), "of years");
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("")))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("ranks-")));
}

TEST(CprunScenario, ATraceThatCannotBeWrittenIsSaidFirst) {
  const TemporaryFolder folder;
  for (const char* name : {".", "missing/run.cptrace"}) {
    const ProgramEnd end = cprun({"--trace", folder.file(name), ring(folder)});
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.out, IsEmpty());
    EXPECT_THAT(end.err, HasSubstr("cannot be written: "));
  }
}

// As of one that makes no Job.
TEST(CprunScenario, AProgramThatLeavesNoTraceIsTold) {
  const TemporaryFolder folder;
  EXPECT_EQ(cprun({"--trace", folder.file("run.cptrace"), "--", "true"}).exit_code, 17);
}

TEST(CprunScenario, PeersConnectToANamedInterface) {
  const TemporaryFolder folder;
  EXPECT_EQ(cprun({"--interface", "lo", ring(folder)}).exit_code, 0);
  const ProgramEnd end = cprun({"--interface", "10.99.99.99", ring(folder)});
  EXPECT_EQ(end.exit_code, 14);
  EXPECT_THAT(end.err, AllOf(HasSubstr("'10.99.99.99' is not an address of this machine; it has "),
                             HasSubstr("lo 127.0.0.1")));
}

TEST(CprunScenario, ATraceIsTheOneOfCpsimRun) {
  const TemporaryFolder folder;
  const std::string path = ring(folder);
  const ProgramEnd end = cprun({"--trace", folder.file("gloo.cptrace"), path});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  ASSERT_EQ(cli::cpsim({"run", "--scenario", path, "--trace", folder.file("fabric.cptrace")}).exit_code, 0);
  const cli::Finished compared =
      cli::cpsim({"trace", "compare", folder.file("fabric.cptrace"), folder.file("gloo.cptrace")});
  EXPECT_EQ(compared.exit_code, 0) << compared.out;
  EXPECT_THAT(compared.out, StartsWith("identical: 4 ranks, "));
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("")))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".ranks"))) << "the ranks' own are left";

  // Another scenario's is another.
  const std::string other = scenario(folder, R"(run { mesh: "cp=4" strategy: "ring" seq_len: 64 })");
  ASSERT_EQ(cli::cpsim({"run", "--scenario", other, "--trace", folder.file("other.cptrace")}).exit_code, 0);
  EXPECT_EQ(
      cli::cpsim({"trace", "compare", folder.file("other.cptrace"), folder.file("gloo.cptrace")}).exit_code,
      1);
}

TEST(CprunScenario, HostsStandInTheTraceUnlessHashed) {
  const TemporaryFolder folder;
  const std::string path = ring(folder), trace = folder.file("t.cptrace");
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  ASSERT_EQ(cprun({"--trace", trace, path}).exit_code, 0);
  EXPECT_THAT(read(trace), HasSubstr(host));
  ASSERT_EQ(cprun({"--trace", trace, "--hash-hosts", path}).exit_code, 0);
  EXPECT_THAT(read(trace), Not(HasSubstr(host)));
}

TEST(CprunScenario, WhatCannotRunIsSaidBeforeAnythingStarts) {
  const TemporaryFolder folder;
  const std::string path = ring(folder);
  const auto expect_refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const ProgramEnd end = cprun(arguments);
    EXPECT_EQ(end.exit_code, 2) << end.err;
    EXPECT_THAT(end.err, AllOf(StartsWith("cprun: "), HasSubstr(message)));
    EXPECT_EQ(std::ranges::count(end.err, '\n'), 1) << end.err;
    EXPECT_THAT(end.out, IsEmpty());
  };
  expect_refused({"--nproc-per-node", "3", path},
                 "the scenario needs 4 ranks, but --nproc-per-node 3 starts 3; use --nproc-per-node 4");
  expect_refused(
      {"--nnodes", "2", "--nproc-per-node", "4", "--rdzv-endpoint", "127.0.0.1:1", "--token-file", path,
       path},
      "the scenario needs 4 ranks, but --nproc-per-node 4 starts 8 on 2 machines; use --nproc-per-node 2");
  expect_refused({"--nnodes", "3", "--nproc-per-node", "2", "--rdzv-endpoint", "127.0.0.1:1", "--token-file",
                  path, path},
                 "the scenario needs 4 ranks, which cannot be divided evenly among 3 machines; use --nnodes "
                 "1 --nproc-per-node 4");
  expect_refused({"--nnodes", "2", "--nproc-per-node", "2", path}, "several machines need --rdzv-endpoint");
  expect_refused({"--nnodes", "2", "--node-rank", "2", path}, "--node-rank 2 is too large for --nnodes 2, ");
  expect_refused({folder.file("none.txtpb")}, "none.txtpb");
  expect_refused({}, "nothing to run; give a scenario, or a program behind --");
  expect_refused({path, "--", "ls"}, "give only one of them");
  expect_refused({"--verify", "--", "ls"}, "--verify compares a scenario");
  expect_refused({"--timeout", "0", path}, "--timeout 0 is out of range");
  expect_refused({"--", "./no_such_program"}, "cannot run './no_such_program': No such file");
  expect_refused({scenario(folder, R"(run { mesh: "cp=2" strategies: "ring,ulysses" seq_len: 64 })")},
                 "the scenario asks for 2 strategies, and processes run one");
}

TEST(CprunProgram, HasItsPlaceInItsEnvironment) {
  const ProgramEnd end = cprun({"--nproc-per-node", "3", "--timeout", "7", "--", "/bin/sh", "-c",
                                "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK, at $MASTER_ADDR, $0, $KEPT, "
                                "$CPRUN_TIMEOUT_MS ms, port ${MASTER_PORT:+known}",
                                "--verify"},
                               {"KEPT=kept", "RANK=9"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  std::vector<std::string> lines;
  for (const std::string_view line : split(end.out, '\n')) lines.emplace_back(line);
  std::ranges::sort(lines);
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "", "[rank 0] 0 of 3, local 0, at 127.0.0.1, --verify, kept, 7000 ms, port known",
                         "[rank 1] 1 of 3, local 1, at 127.0.0.1, --verify, kept, 7000 ms, port known",
                         "[rank 2] 2 of 3, local 2, at 127.0.0.1, --verify, kept, 7000 ms, port known"));
}

TEST(CprunProgram, LogsAreWhatEachRankWrote) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--nproc-per-node", "2", "--log-dir", folder.file("logs"), "--", "/bin/sh",
                                "-c", "echo out $RANK; echo err $RANK >&2; exit $RANK"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_EQ(read(folder.file("logs/rank-0.out")), "out 0\n");
  EXPECT_EQ(read(folder.file("logs/rank-0.err")), "err 0\n");
  EXPECT_EQ(read(folder.file("logs/rank-1.out")), "out 1\n");
  EXPECT_THAT(end.err, AllOf(HasSubstr("[rank 1] err 1\n"), HasSubstr("cprun: rank 1 on host "),
                             HasSubstr(" ended with exit code 1: err 1")));
}

// A pager that shows its first page, say.
TEST(CprunProgram, AReaderThatReadsNoMoreDoesNotHoldIt) {
  const TemporaryFolder folder;
  Program program({"/bin/sh", "-c", R"(mkfifo "$1"; sleep 300 <"$1" & exec "$0" --grace 0.5 -- yes >"$1")",
                   built("cprun"), folder.file("pipe")});
  ASSERT_TRUE(within(std::chrono::seconds(60), [&] {
    return program.processes().size() >= 4;  // it, its guardian, yes and the reader
  }));
  sleep_for(std::chrono::milliseconds(300));
  program.signal(SIGTERM);
  const ProgramEnd end = program.finish(std::chrono::seconds(30));  // the reader would hold it for 300
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_THAT(end.err, HasSubstr("stopped by SIGTERM"));
}

TEST(CprunProgram, APortInUseIsNamed) {
  const Program first({built("cprun"), "--rdzv-endpoint", str("127.0.0.1:", free_port()), "--", "/bin/sh",
                       "-c", "echo $MASTER_PORT; exec sleep 60"});
  ASSERT_TRUE(within(std::chrono::seconds(60), [&] { return !first.read("out").empty(); }));
  const std::string line = first.read("out"), port = line.substr(9, line.find('\n') - 9);  // "[rank 0] "
  const ProgramEnd second = cprun({"--rdzv-endpoint", "127.0.0.1:" + port, "--", "true"});
  EXPECT_EQ(second.exit_code, 16);
  EXPECT_THAT(second.err, HasSubstr(str("127.0.0.1:", port, " is in use")));
}

}  // namespace
}  // namespace cp::testing
