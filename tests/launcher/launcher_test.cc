// How processes start and end.
#include "runtime/launcher/launcher.h"

#include <csignal>
#include <fcntl.h>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/script_ranks.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using runtime::Launcher;
using runtime::LaunchOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using Clock = std::chrono::steady_clock;

std::string message_of(const LaunchOptions& options) {
  try {
    launch(options);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(Launcher, AllWell) {
  const Launched launched = launch("exit 0", 3);
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_FALSE(launched.result.first_failure);
  EXPECT_EQ(summary(launched.result), "");
  ASSERT_EQ(launched.result.ends.size(), 3U);
  EXPECT_EQ(launched.result.ends[2].rank, 2);
  EXPECT_GT(launched.result.ends[2].pid, 0);
  EXPECT_EQ(launched.result.stopped, 0);
}

TEST(Launcher, SaysWhatCannotBeRun) {
  LaunchOptions options = shell("", 2);
  options.argv = {"./no_such_program"};
  EXPECT_EQ(message_of(options), "cannot run './no_such_program': No such file or directory");
  options.argv = {"/dev/null"};
  EXPECT_EQ(message_of(options), "cannot run '/dev/null': Permission denied");
  options.argv = {};
  EXPECT_EQ(message_of(options), "no program to run");
  options = shell("", 0);
  EXPECT_EQ(message_of(options), "cannot run 0 processes; use 1 or more");
}

TEST(Launcher, AFailureOfTheEnvironmentLeavesNoProcess) {
  const Scratch scratch;
  LaunchOptions options = shell(str("echo $$ >> ", scratch.path("pids"), "; sleep 100"), 3);
  options.environment = [&](int index) -> std::vector<std::string> {
    if (index == 2 && scratch.await_lines("pids", 2)) throw std::runtime_error("no more");
    return {};
  };
  EXPECT_THROW(launch(options), std::runtime_error);
  ASSERT_EQ(scratch.pids("pids").size(), 2U);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

TEST(Launcher, EnvironmentIsTheOwnWithAdditions) {
  setenv("CP_KEPT", "kept", 1);
  setenv("CP_CHANGED", "before", 1);
  LaunchOptions options = shell("echo $CP_KEPT $CP_CHANGED $RANK", 2);
  options.environment = [](int index) {
    return std::vector<std::string>{"CP_CHANGED=a=b c", str("RANK=", 10 + index)};
  };
  EXPECT_THAT(lines_of(launch(options).out), ElementsAre("[rank 0] kept a=b c 10", "[rank 1] kept a=b c 11"));
  unsetenv("CP_KEPT");
  unsetenv("CP_CHANGED");
}

TEST(Launcher, OnlyTheFirstReadsStdin) {
  const Scratch scratch;
  const int before = dup(STDIN_FILENO);
  const int file = open(scratch.path("in").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(write(file, "hello\n", 6), 6);
  lseek(file, 0, SEEK_SET);
  dup2(file, STDIN_FILENO);
  LaunchOptions options = shell("cat; echo end", 2);
  EXPECT_THAT(lines_of(launch(options).out), ElementsAre("[rank 0] end", "[rank 1] end"));
  options.stdin_to_first = true;
  EXPECT_THAT(lines_of(launch(options).out), ElementsAre("[rank 0] end", "[rank 0] hello", "[rank 1] end"));
  dup2(before, STDIN_FILENO);
  close(before);
  close(file);
}

TEST(Launcher, ManyProcesses) {
  const Launched launched = launch("echo $RANK", 64);
  EXPECT_EQ(launched.result.exit_code, 0);
  const std::vector<std::string> lines = lines_of(launched.out);
  ASSERT_EQ(lines.size(), 64U);
  EXPECT_EQ(lines[3], "[rank  3] 3");
  EXPECT_EQ(lines[63], "[rank 63] 63");
}

// The faults of the kill matrix that a process suffers, in each place.
struct Fault {
  const char* script;
  int exit_code;
  const char* text;
};

class Faults : public ::testing::TestWithParam<std::tuple<Fault, int>> {};

TEST_P(Faults, NamesTheRankAndEndsTheRest) {
  const auto& [fault, culprit] = GetParam();
  const Scratch scratch;
  LaunchOptions options = shell(
      str("echo $$ >> ", scratch.path("pids"), "; if [ $RANK = ", culprit, " ]; then while [ $(wc -l < ",
          scratch.path("pids"), ") -lt 3 ]; do sleep 0.01; done; ", fault.script, "; fi; sleep 100"),
      3);
  std::vector<Rank> asked;
  options.describe = [&](Rank rank) {
    asked.push_back(rank);
    return "in step 12, all_gather #3 of cp[0,1,2]";
  };
  int failures = 0;
  options.on_failure = [&](const runtime::ProcessFailure&) { ++failures; };
  const Launched launched = launch(options);
  const runtime::LaunchResult& result = launched.result;
  EXPECT_EQ(result.exit_code, fault.exit_code);
  ASSERT_TRUE(result.first_failure);
  EXPECT_EQ(result.first_failure->rank, culprit);
  EXPECT_EQ(result.first_failure->host, "h");
  EXPECT_EQ(result.first_failure->pid, result.ends[static_cast<std::size_t>(culprit)].pid);
  EXPECT_EQ(result.first_failure->text,
            str("rank ", culprit, " on host h (pid ", result.first_failure->pid, ") ", fault.text));
  EXPECT_EQ(result.stopped, 2);
  EXPECT_EQ(summary(result), str(result.first_failure->text, "; 2 other ranks were stopped because of it"));
  EXPECT_THAT(asked, ElementsAre(culprit));
  EXPECT_EQ(failures, 1);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

INSTANTIATE_TEST_SUITE_P(
    Launcher, Faults,
    ::testing::Combine(
        ::testing::Values(
            Fault{"kill -KILL $$", 137, "was killed by SIGKILL in step 12, all_gather #3 of cp[0,1,2]"},
            Fault{"kill -TERM $$", 143, "was killed by SIGTERM in step 12, all_gather #3 of cp[0,1,2]"},
            Fault{"kill -SEGV $$", 139, "was killed by SIGSEGV in step 12, all_gather #3 of cp[0,1,2]"},
            Fault{"echo why >&2; kill -ABRT $$", 134,
                  "was killed by SIGABRT in step 12, all_gather #3 of cp[0,1,2]: why"},
            Fault{"echo first >&2; printf 'the reason' >&2; exit 1", 1,
                  "ended with exit code 1 in step 12, all_gather #3 of cp[0,1,2]: the reason"}),
        ::testing::Values(0, 1, 2)));

TEST(Launcher, LostPeersAreNotTheCause) {
  const Scratch scratch;
  const std::string ready = scratch.path("ready");
  LaunchOptions options =
      shell(str("case $RANK in 0) while [ ! -e ", ready, " ]; do sleep 0.01; done; echo lost >&2; exit 13;; ",
                "1) sleep 0.3;; 2) touch ", ready, "; sleep 0.05; kill -9 $$;; esac"),
            3);
  options.consequence_delay = 60s;
  std::optional<Rank> named;
  options.on_failure = [&](const runtime::ProcessFailure& failure) { named = failure.rank; };
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.exit_code, 137);
  EXPECT_EQ(named, 2);
  EXPECT_THAT(launched.err, HasSubstr("[rank 0] lost\n"));  // still shown
  EXPECT_THAT(summary(launched.result),
              MatchesRegex("rank 2 on host h \\(pid [0-9]+\\) was killed by SIGKILL; "
                           "1 other rank was stopped because of it"));
}

// The others may end by themselves, and are not stopped then.
TEST(Launcher, ConsequencesHaveTimeToEnd) {
  LaunchOptions options =
      shell("if [ $RANK = 1 ]; then exit 4; fi; trap 'echo stopped' TERM; sleep 0.3; echo saved", 2);
  options.consequence_delay = 60s;
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.exit_code, 4);
  EXPECT_EQ(launched.out, "[rank 0] saved\n");
  EXPECT_EQ(launched.result.stopped, 0);
  EXPECT_THAT(summary(launched.result),
              MatchesRegex("rank 1 on host h \\(pid [0-9]+\\) ended with exit code 4"));
}

TEST(Launcher, AfterTheGraceTheyAreKilled) {
  LaunchOptions options = shell("if [ $RANK = 0 ]; then sleep 0.1; exit 4; fi; trap '' TERM; sleep 100", 2);
  options.grace = 100ms;
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.exit_code, 4);
  EXPECT_EQ(launched.result.ends[1].signal, SIGKILL);
}

// A stopped process is named by whoever misses its heartbeats, and ends all the same.
class Stopped : public ::testing::TestWithParam<int> {};

TEST_P(Stopped, EndsWhenItIsReported) {
  const int culprit = GetParam();
  const Scratch scratch;
  LaunchOptions options = shell(
      str("echo $$ >> ", scratch.path("pids"), "; [ $RANK = ", culprit, " ] && kill -STOP $$; sleep 100"), 3);
  LauncherProcess process(options, [&](Launcher& launcher) {
    scratch.await_lines("pids", 3);
    launcher.fail(culprit, str("rank ", culprit, " on host h has sent no heartbeat for 2 s"),
                  ErrorKind::timeout);
    launcher.fail(7, "too late");
  });
  EXPECT_EQ(process.wait(), 12);
  EXPECT_THAT(process.output(), HasSubstr(str("rank ", culprit,
                                              " on host h has sent no heartbeat for 2 s; "
                                              "2 other ranks were stopped because of it\n")));
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}
INSTANTIATE_TEST_SUITE_P(Launcher, Stopped, ::testing::Values(0, 1, 2));

TEST(Launcher, FailureOfAnotherMachineEndsTheJob) {
  LaunchOptions options = shell("sleep 100", 2);
  LauncherProcess process(options, [&](Launcher& launcher) { launcher.fail(5, "rank 5 on host b is gone"); });
  EXPECT_EQ(process.wait(), 13);
  EXPECT_EQ(process.output(), "rank 5 on host b is gone; 2 other ranks were stopped because of it\n");
}

// What a rank started ends with it, and does not keep the launcher waiting.
TEST(Launcher, GrandchildrenEndWithTheirRank) {
  const Scratch scratch;
  const auto start = Clock::now();
  LaunchOptions options =
      shell(str("sleep 100 & echo $! >> ", scratch.path("pids"), "; (trap '' TERM; sleep 100) & echo $! >> ",
                scratch.path("pids"), "; sleep 0.1; echo done"),
            2);
  options.grace = 200ms;
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_THAT(lines_of(launched.out), ElementsAre("[rank 0] done", "[rank 1] done"));
  EXPECT_EQ(scratch.pids("pids").size(), 4U);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
  EXPECT_LT(Clock::now() - start, 60s);
}

TEST(Launcher, GrandchildrenHaveTheGraceToo) {
  LaunchOptions options = shell(
      "(trap 'echo asked; echo ended >&2; exit' TERM; touch $0; while :; do sleep 0.02; done) & "
      "while [ ! -e $0 ]; do sleep 0.01; done; echo why >&2; exit 3",
      1);
  const Scratch scratch;
  options.argv.push_back(scratch.path("ready"));
  options.grace = 600s;
  const Launched launched = launch(options);
  EXPECT_EQ(launched.out, "[rank 0] asked\n");
  EXPECT_THAT(summary(launched.result),
              MatchesRegex("rank 0 on host h \\(pid [0-9]+\\) ended with exit code 3: why"));
}

// A daemon that cannot be found holds the pipe; that does not matter.
TEST(Launcher, ADaemonThatHoldsThePipeIsNotWaitedFor) {
  const Scratch scratch;
  const auto start = Clock::now();
  const Launched launched = launch(
      str("setsid env -i PATH=$PATH sh -c 'echo $$ > ", scratch.path("pids"),
          "; exec sleep 100' & while [ ! -s ", scratch.path("pids"), " ]; do sleep 0.01; done; echo done"),
      1);
  EXPECT_EQ(launched.result.exit_code, 0);
  EXPECT_EQ(launched.out, "[rank 0] done\n");
  EXPECT_LT(Clock::now() - start, 60s);
  ASSERT_EQ(scratch.pids("pids").size(), 1U);
  EXPECT_TRUE(alive(scratch.pids("pids")[0]));
  kill(scratch.pids("pids")[0], SIGKILL);
}

}  // namespace
}  // namespace cp::testing
