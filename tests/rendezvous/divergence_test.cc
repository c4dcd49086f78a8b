#include "runtime/rendezvous/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtime/rendezvous/progress_log.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::DivergenceCheck;
using runtime::Failure;
using runtime::Progress;
using runtime::ProgressLog;
using ::testing::HasSubstr;

const auto kStart = DivergenceCheck::Clock::now();

Progress point(std::int64_t sequence, std::uint64_t digest, const std::string& group = "cp[0,1,2,3]",
               const std::string& operation = "all_gather") {
  return {group, sequence, operation, {0, digest}, sequence};
}

TEST(Divergence, IsOfTheRankThatMostOthersContradict) {
  DivergenceCheck check(1000ms);
  for (const Rank rank : {0, 1, 2, 3}) check.add(rank, point(16, 1), kStart);
  check.add(2, point(17, 9, "cp[0,1,2,3]", "reduce_scatter"), kStart);
  check.add(0, point(17, 5), kStart);
  check.add(1, point(17, 5), kStart);
  EXPECT_FALSE(check.find(kStart));  // two against one, of four
  check.add(3, point(17, 5), kStart);
  const auto failure = check.find(kStart);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, ExitCode::collective_mismatch);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->progress, point(17, 9, "cp[0,1,2,3]", "reduce_scatter"));
  EXPECT_EQ(failure->message,
            "began reduce_scatter #17 of cp[0,1,2,3] where all_gather was begun by ranks 0, 1, 3; all agreed "
            "up to #16");
}

TEST(Divergence, WaitsForTheOthersOnlySoLong) {
  DivergenceCheck check(1000ms);
  check.add(3, point(5, 9), kStart);
  check.add(0, point(5, 1), kStart + 100ms);
  EXPECT_FALSE(check.find(kStart + 1000ms));
  const auto failure = check.find(kStart + 1100ms);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 3);  // the lowest rank is taken to be right
  EXPECT_THAT(failure->message, HasSubstr("with other arguments, or after other collectives, than rank 0"));
}

TEST(Divergence, OfAPairIsDecidedAtOnce) {
  DivergenceCheck check(1000ms);
  check.add(7, point(5, 9, "pair[4,7]"), kStart);
  check.add(4, point(5, 1, "pair[4,7]"), kStart);
  ASSERT_TRUE(check.find(kStart));
  EXPECT_EQ(check.find(kStart)->rank, 7);
}

TEST(Divergence, GroupsAndNumbersAreNotMixed) {
  DivergenceCheck check(0ms);
  check.add(0, point(1, 1), kStart);
  check.add(1, point(2, 2), kStart);
  check.add(1, point(1, 3, "dp[0,1]"), kStart);
  check.add(0, point(9, 4, "dp[0,1]"), kStart);
  EXPECT_FALSE(check.find(kStart + 10s));
}

TEST(Divergence, FarApartOrEndlessHistoriesAreNoTrouble) {
  DivergenceCheck check(0ms);
  for (std::int64_t i = 0; i < 100'000; ++i) check.add(0, point(i, 1), kStart);
  check.add(1, point(3, 2), kStart);  // forgotten
  EXPECT_FALSE(check.find(kStart + 1s));
  check.add(1, point(99'999, 2), kStart);
  EXPECT_TRUE(check.find(kStart + 1s));
}

TEST(ProgressLog, SendsEachPointOnce) {
  ProgressLog log;
  EXPECT_TRUE(log.take().empty());
  EXPECT_EQ(log.latest(), Progress());
  log.set("a", 0, "all_gather", {0, 1}, 10);
  log.set("b", 0, "broadcast", {0, 2}, 11);
  log.set("a", 1, "all_reduce", {0, 3}, 12);
  EXPECT_EQ(log.latest(), (Progress{"a", 1, "all_reduce", {0, 3}, 12}));
  EXPECT_EQ(log.take(), (std::vector<Progress>{{"a", 0, "all_gather", {0, 1}, 10},
                                               {"a", 1, "all_reduce", {0, 3}, 12},
                                               {"b", 0, "broadcast", {0, 2}, 11}}));
  EXPECT_TRUE(log.take().empty());
}

// Two ranks that are `apart` from one another and send heartbeats at any moments: a divergence before their last power of two
// beyond the distance shows.
RC_GTEST_PROP(ProgressLog, RanksThatDriftApartStillMeet, ()) {
  const auto apart = pick("apart", rc::gen::inRange<std::int64_t>(0, 2000));
  const auto last = pick("last", rc::gen::inRange<std::int64_t>(4096, 100'000));
  ProgressLog logs[2];
  DivergenceCheck check(0ms);
  for (Rank rank = 0; rank < 2; ++rank) {
    for (std::int64_t i = 0; i <= last - apart * rank; ++i)
      logs[rank].set("pair[0,1]", i, "all_gather", {0, static_cast<std::uint64_t>(i * 2 + rank)}, i);
    for (const Progress& sent : logs[rank].take()) check.add(rank, sent, kStart);
  }
  std::int64_t power = 1;
  while (power <= apart) power *= 2;
  // A multiple of a higher power may lie between them, but not of all.
  const bool must_meet =
      last - last % (power * 2) <= last - apart || last - last % (power * 4) <= last - apart;
  RC_ASSERT(!must_meet || check.find(kStart).has_value());
}

}  // namespace
}  // namespace cp
