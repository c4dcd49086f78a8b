#include "runtime/launcher/cause.h"

#include <csignal>

#include <gtest/gtest.h>

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using runtime::CauseFinder;
using runtime::Suspect;

Suspect code(Rank rank, int exit_code, int pass) { return {rank, {}, exit_code, {}, pass}; }
Suspect killed(Rank rank, int signal, int pass) { return {rank, signal, 128 + signal, {}, pass}; }
Suspect report(Rank rank, int pass) { return {rank, {}, 13, "it is silent", pass}; }

Suspect cause(const std::vector<Suspect>& suspects) {
  CauseFinder finder;
  for (const Suspect& suspect : suspects) finder.add(suspect, {});
  return finder.cause();
}

TEST(CauseFinder, TheEarliestIsTheCause) {
  EXPECT_EQ(cause({code(1, 1, 2), code(0, 3, 4), killed(2, SIGSEGV, 6)}).rank, 1);
  EXPECT_EQ(cause({code(1, 1, 2), report(0, 3)}).rank, 1);
  EXPECT_EQ(cause({report(3, 1), code(1, 1, 2)}).rank, 3);
  EXPECT_EQ(cause({report(3, 1), report(2, 3)}).rank, 3);
}

TEST(CauseFinder, LostPeersAndTimeoutsAreConsequences) {
  for (const int consequence : {12, 13, 14, 21}) {
    EXPECT_EQ(cause({code(0, consequence, 2), killed(2, SIGKILL, 4)}).rank, 2);
    EXPECT_EQ(cause({code(0, consequence, 2), code(2, 1, 4)}).rank, 2);
    EXPECT_EQ(cause({code(0, consequence, 2), report(7, 4)}).rank, 7);
    EXPECT_EQ(cause({code(1, consequence, 2), code(0, consequence, 4)}).rank, 1);
  }
}

TEST(CauseFinder, OfEndsSeenAtOnceASignalComesFirst) {
  EXPECT_EQ(cause({code(0, 1, 2), killed(1, SIGPIPE, 2), killed(2, SIGKILL, 2)}).rank, 2);
  EXPECT_EQ(cause({killed(1, SIGABRT, 2), code(2, 1, 2)}).rank, 1);
}

TEST(CauseFinder, ABrokenPipeIsAConsequence) {
  EXPECT_EQ(cause({killed(0, SIGPIPE, 2), code(1, 1, 4)}).rank, 1);
  EXPECT_EQ(cause({killed(0, SIGPIPE, 2), report(7, 4)}).rank, 7);
}

TEST(CauseFinder, AnAbortGivesWayToALaterDeath) {
  EXPECT_EQ(cause({killed(0, SIGABRT, 2), killed(2, SIGKILL, 4)}).rank, 2);
  EXPECT_EQ(cause({killed(0, SIGABRT, 2), code(1, 1, 4)}).rank, 0);
  EXPECT_EQ(cause({killed(0, SIGSEGV, 2), killed(2, SIGKILL, 4)}).rank, 0);
}

TEST(CauseFinder, AProcessThatEndedExplainsItsReport) {
  const Suspect own = cause({report(2, 1), code(1, 1, 2), code(2, 5, 4)});
  EXPECT_EQ(own.rank, 2);
  EXPECT_EQ(own.exit_code, 5);
  EXPECT_EQ(cause({report(0, 1), killed(2, SIGKILL, 2)}).rank, 2);  // 0 only noticed it first
  EXPECT_TRUE(cause({report(2, 1), code(2, 13, 2)}).report);
}

TEST(CauseFinder, WaitsLongerForTheCauseOfAConsequence) {
  CauseFinder finder;
  EXPECT_TRUE(finder.empty());
  const CauseFinder::Clock::time_point start{};
  finder.add(code(0, 13, 1), start);
  EXPECT_EQ(finder.deadline(500ms) - start, 500ms);
  finder.add(code(1, 1, 1), start + 30ms);
  EXPECT_EQ(finder.deadline(500ms) - start, 100ms);
}

TEST(CauseFinder, NamesSignals) {
  EXPECT_EQ(runtime::signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(runtime::signal_name(40), "signal 40");
}

}  // namespace
}  // namespace cp::testing
