// The meeting place, step by step: what the interleavings of real runs hit only now and then.
#include "sim/fabric/communicator.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace cp::sim {
namespace {

TEST(Communicator, TheLastToArriveIsTold) {
  Communicator communicator({"g", {4, 7, 5}});
  EXPECT_EQ(communicator.arrive(2), Arrival::waiting);
  EXPECT_EQ(communicator.arrive(0), Arrival::waiting);
  EXPECT_EQ(communicator.arrived(), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(communicator.missing(), (std::vector<std::int32_t>{1}));
  EXPECT_FALSE(communicator.released(0));
  EXPECT_EQ(communicator.arrive(1), Arrival::last);
  communicator.release(0);
  communicator.ring(false);
  EXPECT_TRUE(communicator.released(0));
  EXPECT_EQ(communicator.missing().size(), 3u);
  EXPECT_EQ(communicator.arrive(1), Arrival::waiting);
}

TEST(Communicator, AnArrivalCanBeTakenBackUntilTheRoundIsFull) {
  Communicator communicator({"g", {0, 1}});
  communicator.arrive(0);
  EXPECT_TRUE(communicator.retract(0));
  EXPECT_EQ(communicator.arrive(1), Arrival::waiting);  // alone
  communicator.reset();
  communicator.arrive(0);
  EXPECT_EQ(communicator.arrive(1), Arrival::last);
  EXPECT_FALSE(communicator.retract(0));
  communicator.release(0);
  EXPECT_FALSE(communicator.retract(0));
}

TEST(Communicator, SleepersAndWatchersAreCountedOnlyBeforeTheRelease) {
  Communicator communicator({"g", {0, 1, 2}});
  for (const std::int32_t index : {0, 1, 2}) communicator.arrive(index);
  EXPECT_TRUE(communicator.add_sleeper(0));
  EXPECT_TRUE(communicator.add_watcher(0));
  const Communicator::Waiters waiters = communicator.release(0);
  EXPECT_EQ(waiters.sleepers, 1);
  EXPECT_TRUE(waiters.watched);
  EXPECT_FALSE(communicator.add_sleeper(0));
  EXPECT_FALSE(communicator.add_watcher(0));
  EXPECT_TRUE(communicator.add_sleeper(1));
}

TEST(Communicator, ADepartureIsSeenByThoseBeforeAndAfter) {
  Communicator communicator({"g", {0, 1, 2}});
  EXPECT_FALSE(communicator.depart());  // nobody waits
  EXPECT_EQ(communicator.arrive(0), Arrival::departed);
  EXPECT_TRUE(communicator.depart());
  communicator.reset();
  EXPECT_EQ(communicator.arrive(0), Arrival::waiting);
}

TEST(Communicator, RoundsGoOnBeyondTheCensusWidth) {
  Communicator communicator({"g", {0, 1}});
  for (std::uint32_t round = 0; round < 70'000; ++round) {
    ASSERT_EQ(communicator.arrive(0), Arrival::waiting);
    ASSERT_EQ(communicator.arrive(1), Arrival::last);
    ASSERT_FALSE(communicator.released(round));
    communicator.release(round);
    communicator.ring(false);
    ASSERT_TRUE(communicator.released(round));
    communicator.sleep(round, true);  // returns at once
  }
}

// A member that has seen the end of round 0 in the census may sleep in round 1 before round 0's bell has
// rung: the late bell is not its own. (Taken for its own, the rank would run uncounted, and others would see
// a deadlock.)
TEST(Communicator, ALateBellWakesNobodyOfTheNextRound) {
  Communicator communicator({"g", {0, 1}});
  communicator.arrive(0);
  communicator.arrive(1);
  communicator.release(0);  // rings later
  communicator.arrive(0);
  ASSERT_TRUE(communicator.add_sleeper(1));
  std::atomic<bool> awake = false;
  std::thread sleeper([&] {
    communicator.sleep(1, true);
    awake = true;
  });
  const auto give_it_time = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  give_it_time();
  EXPECT_FALSE(awake);
  communicator.ring(true);
  give_it_time();
  EXPECT_FALSE(awake);
  communicator.arrive(1);
  EXPECT_EQ(communicator.release(1).sleepers, 1);
  communicator.ring(true);
  sleeper.join();
  EXPECT_TRUE(awake);
}

TEST(Communicator, DisturbedSleepersWakeUnlessTheirRoundIsUnderWay) {
  Communicator communicator({"g", {0, 1}});
  communicator.arrive(0);
  communicator.disturb();
  communicator.sleep(0, /*cancellable=*/true);  // returns at once, and at every later try
  communicator.sleep(0, /*cancellable=*/true);
  communicator.arrive(1);
  std::atomic<bool> awake = false;
  ASSERT_TRUE(communicator.add_sleeper(0));
  std::thread sleeper([&] {
    communicator.sleep(0, /*cancellable=*/false);
    awake = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(awake);
  communicator.release(0);
  communicator.ring(true);
  sleeper.join();
}

}  // namespace
}  // namespace cp::sim
