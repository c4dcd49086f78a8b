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
  EXPECT_EQ(failure->kind, ErrorKind::collective_mismatch);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->progress, point(17, 9, "cp[0,1,2,3]", "reduce_scatter"));
  EXPECT_EQ(failure->message,
            "began reduce_scatter #17 of cp[0,1,2,3], but ranks 0, 1, 3 began all_gather; all agreed "
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
  EXPECT_THAT(
      failure->message,
      HasSubstr(
          "differently from rank 0: with other arguments, in another plan, or after other collectives"));
}

// ---- ends

constexpr const char* kPair = "pair[4,7]";

std::optional<Failure> after_ends(const std::map<Rank, std::vector<Progress>>& last,
                                  const std::vector<Rank>& going_on = {}) {
  DivergenceCheck check(1000ms);
  for (const auto& [rank, points] : last) {
    const bool goes_on = std::ranges::find(going_on, rank) != going_on.end();
    if (goes_on) check.add(rank, points.front(), kStart);
    if (!goes_on) check.end(rank, points, kStart);
  }
  return check.find(kStart);
}

TEST(Divergence, OfRanksThatEndAfterTheSameIsNone) {
  EXPECT_FALSE(after_ends({{0, {point(5, 1)}}, {1, {point(5, 1)}}, {2, {point(5, 1)}}, {3, {point(5, 1)}}}));
  EXPECT_FALSE(after_ends({{0, {}}, {1, {}}}));
}

TEST(Divergence, OfTheLastCollectiveIsFoundAtTheEnd) {
  const auto failure =
      after_ends({{0, {point(5, 1)}}, {1, {point(5, 1)}}, {2, {point(5, 9)}}, {3, {point(5, 1)}}});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_THAT(failure->message, HasSubstr("began all_gather #5 of cp[0,1,2,3] differently from "));
}

TEST(Divergence, ARankThatEndsTooEarlyIsNamedAlsoWhileTheOthersGoOn) {
  for (const bool others_go_on : {false, true}) {
    const auto failure =
        after_ends({{0, {point(5, 2)}}, {1, {point(5, 2)}}, {2, {point(4, 1)}}, {3, {point(5, 2)}}},
                   others_go_on ? std::vector<Rank>{0, 1, 3} : std::vector<Rank>{});
    ASSERT_TRUE(failure) << others_go_on;
    EXPECT_EQ(failure->kind, ErrorKind::collective_mismatch);
    EXPECT_EQ(failure->rank, 2);
    EXPECT_EQ(failure->message,
              "ended after all_gather #4 of cp[0,1,2,3], but ranks 0, 1, 3 went on to #5 (all_gather)");
  }
}

TEST(Divergence, ARankThatGoesOnWhereTheOthersEndedIsNamed) {
  const auto failure =
      after_ends({{0, {point(4, 1)}}, {1, {point(4, 1)}}, {2, {point(5, 2)}}, {3, {point(4, 1)}}}, {2});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->message,
            "began all_gather #5 of cp[0,1,2,3], but ranks 0, 1, 3 ended after all_gather #4 of cp[0,1,2,3]");
}

TEST(Divergence, ARankThatEndsWithoutAnyCollectiveOfItsGroupIsNamed) {
  const auto failure = after_ends({{4, {point(0, 1, kPair)}}, {7, {}}});
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 7);  // of two, the lower one is taken to be right
  EXPECT_EQ(failure->message,
            "ended before the first collective of pair[4,7], but rank 4 went on to #0 (all_gather)");
}

TEST(Divergence, ARankMayGoWhenAllOfItsGroupsHaveEnded) {
  DivergenceCheck check(1000ms);
  check.end(9, {}, kStart);
  EXPECT_TRUE(check.all_ended_with(9));  // it has used none
  check.add(7, point(0, 1, kPair), kStart);
  check.end(4, {point(0, 1, kPair)}, kStart);
  EXPECT_FALSE(check.all_ended_with(4));
  check.end(7, {point(0, 1, kPair)}, kStart);
  EXPECT_TRUE(check.all_ended_with(4));
  EXPECT_TRUE(check.all_ended_with(7));
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

// Two ranks that are `apart` from one another and send heartbeats at any moments: a divergence before their
// last power of two beyond the distance shows.
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
