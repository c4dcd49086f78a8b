// Signals to the launcher, and its death.
#include <array>
#include <csignal>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/script_ranks.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using runtime::LaunchOptions;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Says that it is ready, then waits in short sleeps, so that traps run soon.
std::string waiting(const Scratch& scratch, const std::string& before) {
  return str(before, "; echo $$ >> ", scratch.path("pids"), "; while :; do sleep 0.02; done");
}

class Forwarded : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(Forwarded, ReachesEveryRank) {
  const auto& [name, number] = GetParam();
  const Scratch scratch;
  LaunchOptions options = shell(waiting(scratch, str("trap 'echo got it; exit 0' ", name)), 3);
  options.grace = 60s;
  LauncherProcess process(options);
  ASSERT_TRUE(scratch.await_lines("pids", 3));
  process.signal(number);
  EXPECT_EQ(process.wait(), 128 + number);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(process.output(), HasSubstr(str("[rank ", rank, "] got it\n")));
  EXPECT_THAT(process.output(), HasSubstr(str("\nstopped by SIG", name, "\n")));
}
INSTANTIATE_TEST_SUITE_P(Launcher, Forwarded,
                         ::testing::Values(std::pair("INT", SIGINT), std::pair("TERM", SIGTERM),
                                           std::pair("HUP", SIGHUP), std::pair("QUIT", SIGQUIT)));

TEST(LauncherSignals, AfterTheGraceRanksAreKilled) {
  const Scratch scratch;
  LaunchOptions options = shell(waiting(scratch, "trap '' TERM"), 2);
  options.grace = 100ms;
  LauncherProcess process(options);
  ASSERT_TRUE(scratch.await_lines("pids", 2));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 143);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

TEST(LauncherSignals, TheSecondInterruptKills) {
  const Scratch scratch;
  LaunchOptions options = shell(waiting(scratch, "trap 'echo no' INT"), 2);
  options.grace = 600s;
  LauncherProcess process(options);
  ASSERT_TRUE(scratch.await_lines("pids", 2));
  process.signal(SIGINT);
  EXPECT_TRUE(eventually([&] { return lines_of(process.output()).size() >= 2; }));
  for (const pid_t pid : scratch.pids("pids")) EXPECT_TRUE(alive(pid));
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

TEST(LauncherSignals, StoppedRanksEndToo) {
  const Scratch scratch;
  LaunchOptions options = shell(str("echo $$ >> ", scratch.path("pids"), "; kill -STOP $$; sleep 100"), 2);
  options.grace = 600s;
  LauncherProcess process(options);
  ASSERT_TRUE(scratch.await_lines("pids", 2));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 143);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

TEST(LauncherSignals, ARankThatStaysStoppedHasFailed) {
  LaunchOptions options = shell("if [ $RANK = 1 ]; then kill -STOP $$; else exec sleep 100; fi", 3);
  options.stopped_limit = 100ms;
  options.describe = [](Rank) { return std::string("in step 3"); };
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.exit_code, 13);
  ASSERT_TRUE(launched.result.first_failure);
  EXPECT_EQ(launched.result.first_failure->rank, 1);
  EXPECT_EQ(summary(launched.result),
            str("rank 1 on host h (pid ", launched.result.ends[1].pid,
                ") was stopped by SIGSTOP for 0.1 s in step 3; 2 other ranks were stopped because of it"));
}

TEST(LauncherSignals, ARankThatGoesOnHasNot) {
  LaunchOptions options = shell("(sleep 0.1; kill -CONT $$) & kill -STOP $$; sleep 0.2; exit 0", 2);
  options.stopped_limit = 10s;
  EXPECT_EQ(launch(options).result.exit_code, 0);
}

TEST(LauncherSignals, HandlersComeBack) {
  constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGPIPE};
  struct sigaction custom = {};
  custom.sa_handler = [](int) {};
  struct sigaction original = {};
  sigaction(SIGTERM, &custom, &original);
  const auto handlers = [&] {
    std::vector<void (*)(int)> result;
    for (const int signal : kSignals) {
      struct sigaction now = {};
      sigaction(signal, nullptr, &now);
      result.push_back(now.sa_handler);
    }
    return result;
  };
  const auto before = handlers();
  launch("exit 0", 1);
  LaunchOptions missing = shell("", 1);
  missing.argv = {"./no_such_program"};
  EXPECT_THROW(launch(missing), InvalidInput);
  EXPECT_EQ(handlers(), before);
  sigaction(SIGTERM, &original, nullptr);
}

// nohup cprun ...
TEST(LauncherSignals, IgnoredHangupsStayIgnored) {
  const Scratch scratch;
  const auto before = std::signal(SIGHUP, SIG_IGN);
  LauncherProcess process(shell(waiting(scratch, "trap 'exit 5' TERM"), 1));
  std::signal(SIGHUP, before);
  ASSERT_TRUE(scratch.await_lines("pids", 1));
  process.signal(SIGHUP);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 143);
}

// Ranks, what they started, and what ignores gentler signals.
TEST(LauncherSignals, NobodyOutlivesAKilledLauncher) {
  const Scratch scratch;
  const std::string pids = scratch.path("pids");
  LauncherProcess process(
      shell(str("trap '' TERM INT HUP; sleep 100 & echo $! >> ", pids, "; (sh -c 'echo $$ >> ", pids,
                "; sleep 100; :') & echo $$ >> ", pids, "; if [ $RANK = 1 ]; then kill -STOP $$; fi; wait"),
            3));
  ASSERT_TRUE(scratch.await_lines("pids", 9));
  process.signal(SIGKILL);
  EXPECT_EQ(process.wait(), 137);
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

// Ranks end with the launcher even where nobody else could end them.
TEST(LauncherSignals, RanksDoNotNeedTheGuardian) {
  const Scratch scratch;
  LauncherProcess process(shell(str("echo $$ >> ", scratch.path("pids"), "; exec sleep 100"), 3));
  ASSERT_TRUE(scratch.await_lines("pids", 3));
  const std::vector<pid_t> guardians = process.children("cprun-guardian");
  ASSERT_EQ(guardians.size(), 1U);
  kill(guardians[0], SIGKILL);
  ASSERT_TRUE(all_end(guardians));
  for (const pid_t pid : scratch.pids("pids")) EXPECT_TRUE(alive(pid));
  process.signal(SIGKILL);
  process.wait();
  EXPECT_TRUE(all_end(scratch.pids("pids")));
}

// Nor does the guardian outlive it.
TEST(LauncherSignals, TheGuardianEndsWithTheLauncher) {
  const Scratch scratch;
  LauncherProcess process(shell(str("echo $$ >> ", scratch.path("pids"), "; exec sleep 100"), 1));
  ASSERT_TRUE(scratch.await_lines("pids", 1));
  const std::vector<pid_t> guardians = process.children("cprun-guardian");
  ASSERT_EQ(guardians.size(), 1U);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) kill(guardians[0], number);
  EXPECT_TRUE(alive(guardians[0]));
  process.signal(SIGKILL);
  process.wait();
  EXPECT_TRUE(all_end(guardians));
}

// At any moment of its start.
TEST(LauncherSignals, NobodyOutlivesALauncherKilledEarly) {
  for (const auto delay : {0us, 200us, 500us, 1000us, 1500us, 2000us, 3000us, 5000us, 8000us}) {
    const Scratch scratch;
    LauncherProcess process(shell(str("echo $$ >> ", scratch.path("pids"), "; sleep 100"), 4));
    const auto start = Clock::now();
    while (Clock::now() - start < delay) {
    }
    process.signal(SIGKILL);
    process.wait();
    EXPECT_TRUE(all_end(scratch.pids("pids"))) << delay.count() << " us";
  }
}

}  // namespace
}  // namespace cp::testing
