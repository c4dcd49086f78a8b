// Which waits are failures: what ranks say, at times that the test makes up.
#include "runtime/rendezvous/stall.h"

#include <map>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::Activity;
using runtime::Failure;
using runtime::StallCheck;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StallTest : public ::testing::Test {
 protected:
  // The rank waits in these, and has begun them.
  void wait(Rank rank, std::vector<Activity::Collective> calls, std::chrono::milliseconds time,
            std::uint64_t moved = 0) {
    for (const auto& call : calls) begun_[{rank, call.group}] = call.sequence;
    check_->add(rank, {true, std::move(calls), moved}, start_ + time);
  }
  void compute(Rank rank, std::chrono::milliseconds time) { check_->add(rank, {}, start_ + time); }
  std::int64_t last_begun(Rank rank, const std::string& group) const {
    const auto known = begun_.find({rank, group});
    return known == begun_.end() ? -1 : known->second;
  }
  std::optional<Failure> find(std::chrono::milliseconds time) const {
    return check_->find([this](Rank rank, const std::string& group) { return last_begun(rank, group); },
                        start_ + time);
  }
  std::vector<std::string> notes(std::chrono::milliseconds time) {
    return check_->take_notes([this](Rank rank, const std::string& group) { return last_begun(rank, group); },
                              start_ + time);
  }

  StallCheck::Clock::time_point start_ = StallCheck::Clock::now();
  std::optional<StallCheck> check_{std::in_place, 1000ms};
  std::map<std::pair<Rank, std::string>, std::int64_t> begun_;
};

const Activity::Collective kAll{"cp[0,1,2]", 17, "exchange"}, kLeft{"left[0,1]", 3, "all_gather"},
    kRight{"right[0,1]", 5, "all_reduce"};

TEST_F(StallTest, ARankThatComputesIsWaitedForAsLongAsItTakes) {
  compute(1, 0ms);
  for (auto time = 0ms; time <= 100'000ms; time += 500ms) {
    wait(0, {kAll}, time), wait(2, {kAll}, time);
    EXPECT_FALSE(find(time));
  }
  EXPECT_THAT(
      notes(100'000ms),
      ElementsAre(
          "ranks 0, 2 wait in exchange #17 of cp[0,1,2] for rank 1, which has been computing for 100 s"));
  EXPECT_THAT(notes(200'000ms), IsEmpty());  // once
}

TEST_F(StallTest, BeyondTheComputeLimitItIsNamed) {
  check_.emplace(1000ms, 3000ms);
  compute(1, 0ms);
  wait(0, {kAll}, 500ms), wait(2, {kAll}, 500ms);
  EXPECT_FALSE(find(3400ms));
  const auto failure = find(3500ms);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->kind, ErrorKind::timeout);
  EXPECT_EQ(failure->message,
            "has not joined exchange #17 of cp[0,1,2] for 3 s; ranks 0, 2 wait. It is alive: it computes, or "
            "it is stuck in its own "
            "code (--compute-timeout)");
}

TEST_F(StallTest, RanksThatWaitForOneAnotherAreADeadlock) {
  wait(0, {kLeft}, 0ms), wait(1, {kRight}, 0ms);
  compute(2, 0ms);
  EXPECT_FALSE(find(999ms));
  const auto failure = find(1000ms);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::deadlock);
  EXPECT_EQ(failure->rank, 0);
  EXPECT_EQ(failure->message,
            "deadlock: rank 0 waits in all_gather #3 of left[0,1] for rank 1, rank 1 waits in all_reduce #5 "
            "of right[0,1] for "
            "rank 0; nothing has moved for 1 s; issue the collectives in the same order on all ranks");
}

// Rank 0 waits for rank 2, which waits for rank 1, and rank 1 for it.
TEST_F(StallTest, TheCycleIsNamedWithoutTheWayToIt) {
  wait(0, {{"pair[0,2]", 1, "exchange"}}, 0ms);
  wait(2, {{"right[1,2]", 5, "all_reduce"}}, 0ms);
  wait(1, {{"back[1,2]", 2, "all_gather"}}, 0ms);
  const auto failure = find(1000ms);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_THAT(failure->message,
              HasSubstr("deadlock: rank 2 waits in all_reduce #5 of right[1,2] for rank 1, rank 1 waits in "
                        "all_gather #2 of back[1,2] for rank 2; nothing"));
}

TEST_F(StallTest, ARankThatWaitsForOneWhichCanGoOnIsNone) {
  // 0 waits for 1, 1 for 2, and 2 computes.
  wait(0, {kLeft}, 0ms), begun_[{1, kLeft.group}] = 2;
  wait(1, {kAll}, 0ms), begun_[{0, kAll.group}] = 17;
  compute(2, 0ms);
  EXPECT_FALSE(find(100'000ms));
  // Another stream of rank 0 is in a collective that can end.
  wait(1, {kRight}, 0ms), begun_[{0, kRight.group}] = 4;
  wait(0, {kLeft, {"other[0,2]", 0, "broadcast"}}, 0ms);
  EXPECT_FALSE(find(100'000ms));
}

TEST_F(StallTest, ACollectiveThatAllHaveBegunMustMove) {
  for (const Rank rank : {0, 1, 2}) wait(rank, {kAll}, 0ms);
  for (auto time = 500ms; time <= 5000ms; time += 500ms) {
    wait(1, {kAll}, time, static_cast<std::uint64_t>(time.count()));  // payload arrives
    EXPECT_FALSE(find(time));
  }
  EXPECT_FALSE(find(5900ms));
  const auto failure = find(6000ms);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::timeout);
  EXPECT_EQ(failure->message,
            "all ranks have begun exchange #17 of cp[0,1,2], and no payload has moved for 1 s; is the "
            "network between them up? If it is only slow, use a longer --timeout");
}

// The others have waited long when the last comes, and have not said yet that payload moves.
TEST_F(StallTest, ALateRankThatJustBeganIsNoStall) {
  wait(0, {kAll}, 0ms), wait(2, {kAll}, 0ms), compute(1, 0ms);
  wait(1, {kAll}, 10'000ms);
  EXPECT_FALSE(find(10'100ms));
}

// The last one has said that it began, and not yet that it waits.
TEST_F(StallTest, ALateRankWhoseWaitIsNotKnownYetIsNone) {
  wait(0, {kAll}, 0ms), wait(2, {kAll}, 0ms), compute(1, 0ms);
  begun_[{1, kAll.group}] = kAll.sequence;
  const runtime::Progress latest{kAll.group, kAll.sequence, kAll.operation, {}, -1};
  check_->begun(1, latest, start_ + 10'000ms);
  EXPECT_FALSE(find(10'900ms));
  check_->begun(1, latest, start_ + 10'900ms);  // no news
  EXPECT_TRUE(find(11'000ms));
}

TEST_F(StallTest, TimeInWhichThisProcessStoodStillIsNobodys) {
  wait(0, {kLeft}, 0ms), wait(1, {kRight}, 0ms);
  check_->forgive(5000ms);
  EXPECT_FALSE(find(5900ms));
  EXPECT_TRUE(find(6000ms));
}

TEST_F(StallTest, ARankThatHasGoneIsForgotten) {
  for (const Rank rank : {0, 1, 2}) wait(rank, {kAll}, 0ms);
  check_->forget(1);
  EXPECT_FALSE(find(2000ms));
}

}  // namespace
}  // namespace cp
