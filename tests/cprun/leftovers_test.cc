// What cprun leaves behind when it is killed, when a disk is full, and when a pass fails.
#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/file.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"
#include "traces/trace_files.h"

namespace cp::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two passes, of seconds each where nobody says less.
#ifdef __SANITIZE_ADDRESS__
constexpr int kLength = 3000;
#else
constexpr int kLength = 12'000;
#endif
std::string long_run(const TemporaryFolder& folder, int length = kLength) {
  return scenario(folder, str("run { mesh: \"cp=3\" strategy: \"ring\" seq_len: ", length,
                              " q_heads: 4 kv_heads: 4 head_dim: 64 backward: true }"));
}

std::vector<std::string> folders_in(const std::string& path) {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().filename().string().find("ranks-") != std::string::npos)
      found.push_back(entry.path().string());
  }
  return found;
}

std::string only_folder_in(const std::string& path) {
  const std::vector<std::string> found = folders_in(path);
  return found.size() == 1 ? found[0] : "";
}

TEST(CprunLeftovers, AKilledLaunchersFolderGoesWithIt) {
  const TemporaryFolder folder, temporary;
  Program job({built("cprun"), "--verify", long_run(folder)}, {"TMPDIR=" + temporary.file("")});
  ASSERT_TRUE(within(60s, [&] { return folders_in(temporary.file("")).size() == 1; }));
  ASSERT_TRUE(within(60s, [&] { return job.children("cprun").size() == 3; }));
  job.signal(SIGKILL);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(within(60s, [&] { return folders_in(temporary.file("")).empty(); }));
}

// Where nobody was left who could.
TEST(CprunLeftovers, TheNextStartRemovesAFolderWhoseLauncherIsGone) {
  const TemporaryFolder folder, temporary;
  const std::vector<std::string> there = {"TMPDIR=" + temporary.file("")};
  {
    Program job({built("cprun"), "--verify", long_run(folder)}, there);
    ASSERT_TRUE(within(60s, [&] { return job.children("cprun-guardian").size() == 1; }));
    ASSERT_TRUE(within(60s, [&] { return folders_in(temporary.file("")).size() == 1; }));
    kill(job.children("cprun-guardian")[0], SIGKILL);
    job.signal(SIGKILL);
    job.finish();
    ASSERT_TRUE(within(60s, [&] { return job.processes().empty(); }));
  }
  ASSERT_THAT(folders_in(temporary.file("")), SizeIs(1));
  fs::create_directory(temporary.file("cprun.ranks-LIVING"));
  const int lock = open(temporary.file("cprun.ranks-LIVING").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  fs::create_directory(temporary.file("cprun.other"));
  fs::create_directory_symlink(temporary.file("cprun.other"), temporary.file("cprun.ranks-LINKED"));
  EXPECT_EQ(cprun({"--nproc-per-node", "1", "--", "true"}, there).exit_code, 0);
  EXPECT_THAT(folders_in(temporary.file("")),
              ::testing::UnorderedElementsAre(HasSubstr("ranks-LIVING"), HasSubstr("ranks-LINKED")));
  EXPECT_TRUE(fs::exists(temporary.file("cprun.other")));
  close(lock);
}

TEST(CprunLeftovers, JobsAtOnceLeaveEachOthersFolders) {
  const TemporaryFolder folder, temporary;
  const std::vector<std::string> there = {"TMPDIR=" + temporary.file("")};
  Program job({built("cprun"), "--verify", long_run(folder)}, there);
  ASSERT_TRUE(within(60s, [&] { return folders_in(temporary.file("")).size() == 1; }));
  const std::string own = only_folder_in(temporary.file(""));
  const TemporaryFolder other;
  EXPECT_EQ(cprun({"--verify", ring(other)}, there).exit_code, 0);
  EXPECT_EQ(only_folder_in(temporary.file("")), own);
}

// The ranks' files fit, and the one that is made of them does not.
TEST(CprunLeftovers, AFullDiskLeavesNoHalfATraceAndSaysWhereTheWholeOnesAre) {
  const TemporaryFolder folder, measured;
  const std::string path = ring(folder);
  ASSERT_EQ(cprun({"--trace", measured.file("run.cptrace"), path}).exit_code, 0);
  const auto whole = static_cast<std::int64_t>(fs::file_size(measured.file("run.cptrace")));
  const TemporaryFolder out;
  const std::int64_t half_in_blocks = whole / 2 / 512;
  const ProgramEnd end =
      run({"/bin/sh", "-c", str("trap '' XFSZ; ulimit -f ", half_in_blocks, "; exec \"$@\""), "sh",
           built("cprun"), "--trace", out.file("run.cptrace"), path});
  EXPECT_EQ(end.exit_code, 17) << end.err;
  const std::string ranks = only_folder_in(out.file(""));
  EXPECT_THAT(end.err, AllOf(HasSubstr("is the disk full?"), HasSubstr("are kept in " + ranks + ";")));
  EXPECT_FALSE(fs::exists(out.file("run.cptrace")));
  EXPECT_EQ(read_trace_path(ranks).ranks.size(), 4U);
  EXPECT_EQ(read_trace_path(ranks).truncation, std::nullopt);
}

// Numbers begin again with each pass.
bool has_backward(const std::vector<OpRecord>& records) {
  return std::ranges::count(records, 0, &OpRecord::sequence) >= 2;
}

// A job that writes a trace, and is in its backward pass.
class TracedJob {
 public:
  explicit TracedJob(int length, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> argv = {built("cprun"), "--trace", out_.file("run.cptrace"),
                                     long_run(folder_, length)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    program_.emplace(argv);
  }

  bool await_backward(Rank rank) {
    return within(200s, [&] { return has_backward(trace_of(rank).observed); });
  }
  RankTrace trace_of(Rank rank) {
    ranks_ = only_folder_in(out_.file(""));
    const std::string file = rank_trace_path(ranks_, rank);
    if (ranks_.empty() || !fs::exists(file) || fs::file_size(file) == 0) return RankTrace{};
    const TraceFile trace = read_trace_file(file);
    return trace.ranks.empty() ? RankTrace{} : trace.ranks[0];
  }
  // The rank that fails.
  void signal(Rank rank, int number) const {
    const std::vector<pid_t> pids = program_->children("cprun");
    ASSERT_THAT(pids, SizeIs(3));
    kill(pids[static_cast<std::size_t>(rank)], number);
  }
  ProgramEnd finish() {
    const ProgramEnd end = program_->finish(2min);
    EXPECT_THAT(end.err, HasSubstr("cprun: the traces up to the failure are in " + ranks_ + "\n"));
    return end;
  }

 private:
  TemporaryFolder folder_, out_;
  std::string ranks_;
  std::optional<Program> program_;
};

TEST(CprunLeftovers, TheTraceOfAFailedRunHasThePassThatFailed) {
  TracedJob job(kLength);
  ASSERT_TRUE(job.await_backward(1));  // while it runs
  EXPECT_TRUE(has_backward(job.trace_of(1).issued));
  job.signal(1, SIGKILL);
  EXPECT_EQ(job.finish().exit_code, 128 + SIGKILL);
  for (const Rank rank : {0, 1, 2}) {
    const RankTrace trace = job.trace_of(rank);
    EXPECT_TRUE(has_backward(trace.issued)) << rank;
    EXPECT_TRUE(has_backward(trace.observed)) << rank;
  }
}

// Ranks that lose a peer write all that they did, with its times.
TEST(CprunLeftovers, ARankWhosePassFailsWritesAllOfIt) {
  // What a busy machine writes takes it longer than the usual grace.
  TracedJob job(kLength, {"--timeout", "20", "--grace", "60"});
  ASSERT_TRUE(job.await_backward(1));
  job.signal(1, SIGSTOP);
  EXPECT_EQ(job.finish().exit_code, 13);
  for (const Rank rank : {0, 2}) {
    const RankTrace trace = job.trace_of(rank);
    EXPECT_TRUE(has_backward(trace.observed)) << rank;
    EXPECT_EQ(trace.observed_times.size(), trace.observed.size()) << rank;
  }
}

// By what it is told, not by what was written in time: everything that was done is there, once, and in its
// order.
TEST(CprunLeftovers, ATraceThatIsWrittenAsItGoesIsWhole) {
  const TemporaryFolder folder, out;
  Program job(
      {built("cprun"), "--trace", out.file("run.cptrace"), "--verify", long_run(folder, kLength / 2)});
  const ProgramEnd end = job.finish(10min);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("\nidentical: 3 ranks, "));
  EXPECT_THAT(end.err, IsEmpty());
}

}  // namespace
}  // namespace cp::testing
