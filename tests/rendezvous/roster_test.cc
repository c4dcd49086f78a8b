// Which failure is the first: events in an order, at times that the test makes up.
#include "runtime/rendezvous/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp {
namespace {

using namespace std::chrono_literals;
using runtime::Roster;
using ::testing::HasSubstr;

class RosterTest : public ::testing::Test {
 protected:
  RosterTest() {
    for (Rank rank = 0; rank < 4; ++rank) roster_.join(rank, rank < 2 ? "a" : "b", 100 + rank, at(0ms));
  }
  Roster::Clock::time_point at(std::chrono::milliseconds time) const { return start_ + time; }
  // Beats of the ranks each 500 ms.
  void beat(std::vector<Rank> ranks, std::chrono::milliseconds from, std::chrono::milliseconds to) {
    for (auto time = from; time <= to; time += 500ms) {
      for (const Rank rank : ranks) roster_.heartbeat(rank, at(time));
      roster_.check(at(time));
    }
  }
  std::string cause() const { return roster_.cause() ? to_string(*roster_.cause()) : ""; }

  Roster::Clock::time_point start_ = Roster::Clock::now();
  Roster roster_{4, 2000ms, 30'000ms};
};

TEST_F(RosterTest, NobodyFailsWhoBeatsOrLeaves) {
  beat({0, 1, 2, 3}, 0ms, 5000ms);
  roster_.leave(2);
  roster_.lose(2, ErrorKind::peer_lost, "closed", at(5100ms));
  beat({0, 1, 3}, 5500ms, 20'000ms);
  EXPECT_EQ(cause(), "");
}

TEST_F(RosterTest, ABrokenConnectionIsNamedAtOnceWithWhereTheRankWas) {
  roster_.progress(2, {"cp[0,1,2,3]", 17, "all_gather", {}, 40});
  roster_.lose(2, ErrorKind::peer_lost, "closed", at(10ms));
  EXPECT_EQ(
      cause(),
      "rank 2 (host b, pid 102), last heard 10 ms ago at all_gather #17 of cp[0,1,2,3], step 40: closed");
}

// It may have gone on since: how long ago that was is counted from the heartbeat that said it.
TEST_F(RosterTest, WhereALostRankWasIsAsOldAsWhatItTold) {
  roster_.heartbeat(2, at(100ms));
  roster_.progress(2, {"cp[0,1,2,3]", 17, "all_gather", {}, -1});
  for (const Rank rank : {0, 1, 2, 3}) roster_.heartbeat(rank, at(1300ms));  // of requests, say
  EXPECT_EQ(roster_.status(at(1400ms))[2].latest_age, 1300ms);
  for (const Rank rank : {0, 1, 3}) roster_.heartbeat(rank, at(2200ms));
  roster_.lose(2, ErrorKind::peer_lost, "closed", at(2270ms));
  EXPECT_EQ(cause(),
            "rank 2 (host b, pid 102), last heard 2.1 s ago at all_gather #17 of cp[0,1,2,3]: closed");
}

// A rank that reports says first where it is.
TEST_F(RosterTest, WhereARankFailsIsAsItSays) {
  roster_.progress(2, {"cp[0,1,2,3]", 17, "all_gather", {}, 40});
  roster_.report(2, ErrorKind::check_failed, "wrong", at(500ms));
  EXPECT_EQ(cause(), "rank 2 (host b, pid 102) at all_gather #17 of cp[0,1,2,3], step 40: wrong");
}

// Whoever found it says where the rank was, or does not know.
TEST_F(RosterTest, WhatOthersFoundIsNotMadeOlder) {
  roster_.progress(2, {"cp[0,1,2,3]", 17, "all_gather", {}, 40});
  roster_.add(
      {ErrorKind::peer_lost, 2, "", 0, "was killed by SIGKILL in all_gather #19 of cp[0,1,2,3]", {}, {}});
  EXPECT_EQ(cause(), "rank 2 (host b, pid 102): was killed by SIGKILL in all_gather #19 of cp[0,1,2,3]");
}

TEST_F(RosterTest, SilenceIsNamedAfterTheTimeout) {
  beat({0, 2, 3}, 0ms, 2000ms);
  EXPECT_EQ(cause(), "");
  roster_.check(at(2001ms));
  EXPECT_EQ(cause(),
            "rank 1 (host a, pid 101): no heartbeat for 2 s: the process is stopped or its machine cannot be "
            "reached");
}

TEST_F(RosterTest, AHostThatIsCutOffIsNamedWithItsRanks) {
  roster_.heartbeat(3, at(100ms));
  beat({0, 1}, 0ms, 2000ms);
  roster_.check(at(2001ms));
  EXPECT_EQ(cause(),
            "rank 2 (host b, pid 102): no heartbeat for 2 s: host b with ranks 2, 3 is down or cut off");
}

TEST_F(RosterTest, ConsequencesThatComeFirstWaitForTheCause) {
  roster_.report(1, ErrorKind::peer_lost, "connection to rank 2 broke", at(10ms));
  roster_.report(3, ErrorKind::timeout, "rank 2 has not come", at(11ms));
  roster_.check(at(20ms));
  EXPECT_EQ(cause(), "");
  roster_.lose(2, ErrorKind::peer_lost, "closed", at(30ms));
  EXPECT_EQ(roster_.cause()->rank, 2);
  ASSERT_EQ(roster_.consequences().size(), 2U);
  EXPECT_EQ(roster_.consequences()[0].rank, 1);
}

TEST_F(RosterTest, ErrorsOfARanksOwnAreCausesAtOnce) {
  roster_.report(1, ErrorKind::timeout, "rank 2 has not come", at(10ms));
  roster_.report(2, ErrorKind::check_failed, "wrong result", at(20ms));
  EXPECT_EQ(cause(), "rank 2 (host b, pid 102): wrong result");
}

TEST_F(RosterTest, WithoutABetterCauseTheFirstComplaintIsTaken) {
  beat({0, 1, 2, 3}, 0ms, 1000ms);
  roster_.report(1, ErrorKind::peer_lost, "connection to rank 2 broke", at(1010ms));
  roster_.report(3, ErrorKind::peer_lost, "connection to rank 2 broke", at(1020ms));
  roster_.check(at(1200ms));
  EXPECT_EQ(cause(), "");
  roster_.check(at(1320ms));
  EXPECT_EQ(roster_.cause()->rank, 1);
}

// A rank that was stopped makes its peers time out before its own silence is long enough.
TEST_F(RosterTest, ComplaintsWaitForARankThatIsLateUntilItIsLost) {
  beat({0, 1, 2}, 0ms, 1000ms);
  roster_.report(0, ErrorKind::timeout, "rank 3 has not come", at(1100ms));
  roster_.lose(1, ErrorKind::peer_lost, "closed", at(1200ms));  // it gave up, too
  roster_.check(at(1900ms));
  EXPECT_EQ(cause(), "");
  roster_.heartbeat(2, at(1900ms));
  roster_.check(at(2001ms));
  EXPECT_EQ(roster_.cause()->rank, 3);
  EXPECT_EQ(roster_.consequences().size(), 2U);
}

TEST_F(RosterTest, ComplaintsWaitForARankThatIsLateUntilItBeats) {
  beat({0, 1, 2}, 0ms, 1000ms);
  roster_.report(0, ErrorKind::timeout, "rank 3 has not come", at(1100ms));
  roster_.heartbeat(2, at(1500ms));
  roster_.heartbeat(1, at(1500ms));
  roster_.check(at(1500ms));
  EXPECT_EQ(cause(), "");
  roster_.heartbeat(3, at(1600ms));
  roster_.check(at(1600ms));
  EXPECT_EQ(roster_.cause()->rank, 0);
}

TEST_F(RosterTest, ItsOwnStandstillBlamesNobody) {
  roster_.forgive(10'000ms);
  roster_.check(at(10'500ms));
  EXPECT_EQ(cause(), "");
}

TEST_F(RosterTest, WhatTheLauncherKnowsIsACause) {
  roster_.progress(1, {"cp[0,1]", 3, "broadcast", {}, -1});
  roster_.report(0, ErrorKind::peer_lost, "connection to rank 1 broke", at(1ms));
  roster_.add({ErrorKind::peer_lost, 1, "", 0, "killed by signal 9", {}});
  EXPECT_EQ(cause(), "rank 1 (host a, pid 101): killed by signal 9");
  roster_.lose(1, ErrorKind::peer_lost, "closed", at(5ms));
  EXPECT_EQ(roster_.consequences().size(), 1U);
}

TEST(Roster, AllRanksJoinInTime) {
  const auto start = Roster::Clock::now();
  Roster roster(4, 2000ms, 1000ms);
  roster.check(start + 60s);  // from the first join on
  EXPECT_FALSE(roster.cause());
  roster.join(2, "a", 1, start);
  roster.check(start + 999ms);
  EXPECT_FALSE(roster.cause());
  roster.check(start + 1000ms);
  ASSERT_TRUE(roster.cause());
  EXPECT_EQ(roster.cause()->kind, ErrorKind::rendezvous);
  EXPECT_EQ(roster.cause()->message, "ranks 0, 1, 3 of 4 have not joined within 1 s of the first rank");
}

}  // namespace
}  // namespace cp
