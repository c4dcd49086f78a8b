// Ctrl-C and the progress line.
#include "cli/common/interrupt.h"

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Takes minutes when nobody stops it.
const std::vector<std::string> kLong = {"run",       "--mesh", "cp=4",         "--seq-len", "40000",
                                        "--q-heads", "8",      "--strategies", "all"};

TEST(Interrupt, CtrlCStopsWith130AndNoHalfReport) {
  CpsimProcess process(kLong, CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text("(1 s)"));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 130);
  EXPECT_THAT(finished.out, IsEmpty());
  EXPECT_THAT(finished.err, HasSubstr("cpsim: interrupted"));
}

TEST(Interrupt, TerminationStopsItWith143) {
  CpsimProcess process(kLong, CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text("(1 s)"));
  process.signal(SIGTERM);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 143);
  EXPECT_THAT(finished.err, HasSubstr("cpsim: interrupted"));
}

TEST(Interrupt, AStoppedVerificationSaysHowFarItGot) {
  CpsimProcess process({"verify", "redistribute", "--ranks", "8", "--tensor-dims", "2"},
                       CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text(" a second, "));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 130);
  EXPECT_THAT(finished.out, ::testing::ContainsRegex("^pairs [0-9]+, wrong 0, .*stopped before the end"));
}

// A rank's launcher says how it ended.
TEST(InterruptDeathTest, AQuietProgramDiesOfTheSignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    EXPECT_EXIT((handle_interrupts_quietly(), raise(signal)), ::testing::KilledBySignal(signal), "^$");
    EXPECT_EXIT(
        {
          handle_interrupts_quietly();
          const InterruptScope scope;
          raise(signal);
          if (InterruptScope::interrupted()) raise(signal);
        },
        ::testing::KilledBySignal(signal), "^$");
  }
}

// Each program says its own name, whatever the signal, and the second time where the first one is deferred.
TEST(InterruptDeathTest, EachProgramSaysItsOwnName) {
  for (const char* program : {"cpsim", "cprun"}) {
    const std::string words = std::string("^\n") + program + ": interrupted\n$";
    EXPECT_EXIT((handle_interrupts(program), raise(SIGINT)), ::testing::ExitedWithCode(130), words);
    EXPECT_EXIT(
        {
          handle_interrupts(program);
          raise(SIGTERM);
        },
        ::testing::ExitedWithCode(143), words);
    EXPECT_EXIT(
        {
          handle_interrupts(program);
          const InterruptScope scope;
          raise(SIGINT);
          if (InterruptScope::interrupted()) raise(SIGINT);
        },
        ::testing::ExitedWithCode(130), words);
    EXPECT_EXIT(
        {
          handle_interrupts(program);
          finish([] { raise(SIGINT); });
        },
        ::testing::ExitedWithCode(130), words);
  }
}

TEST(Progress, IsShownOnATerminalAfterASecondAndWiped) {
  CpsimProcess process({"verify", "redistribute", "--ranks", "8", "--tensor-dims", "2"},
                       CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text(" left ("));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_THAT(finished.err,
              ::testing::ContainsRegex("checked [0-9,]+ of [0-9,]+ pairs, [0-9,]+ a second, .* left"));
  EXPECT_THAT(finished.err, ::testing::EndsWith("\r\x1b[K"));
}

}  // namespace
}  // namespace cp::cli
