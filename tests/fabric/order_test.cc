// The orders of the baton: what each kind promises.
#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/fabric/rank_threads.h"
#include "sim/fabric/scheduler.h"
#include "sim/fabric/turn_choosers.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = BatonOrder::Kind;

// `kernels` fills on each of the streams of every rank; none depends on another.
std::vector<Plan> independent_fills(int world_size, int kernels,
                                    const std::vector<std::string>& streams = {"s"}) {
  return plans_of(world_size, [&](PlanBuilder& b, Rank) {
    for (const std::string& stream : streams) {
      const View view = flat_view(b.output(stream, DType::f32, 1), 0, 1);
      for (int i = 0; i < kernels; ++i) b.add(b.stream(stream), Fill{view, 1});
    }
  });
}

std::string turns_text(const std::vector<Turn>& turns) {
  std::string text;
  for (const Turn& turn : turns) text += str(turn.rank, static_cast<char>('a' + turn.stream), " ");
  return text;
}

std::vector<Turn> turns_of(int world_size, const FabricOptions& options, const std::vector<Plan>& plans) {
  Fabric fabric(world_size, options);
  execute_all(fabric, plans);
  return fabric.turns();
}

// Two groups on streams of their own and a kernel between: ranks meet, wait and have choices.
std::vector<Plan> meetings(int world_size) {
  return plans_of(world_size, [&](PlanBuilder& b, Rank rank) {
    const std::vector<Rank> all = ranks_up_to(world_size), pair = {0, 1};
    for (int i = 0; i < 2; ++i) {
      add_all_reduce(b, "all", all, 4, "x");
      if (rank < 2) add_all_reduce(b, "pair", pair, 4, "y");
      const View view = flat_view(b.output("filled", DType::f32, 1), 0, 1);
      b.add(b.stream("z"), Fill{view, 1});
    }
  });
}

int switches(const std::vector<Turn>& turns) {
  int count = 0;
  for (std::size_t i = 1; i < turns.size(); ++i) count += turns[i] != turns[i - 1] ? 1 : 0;
  return count;
}

TEST(BatonOrders, RandomTurnsAreThoseThatTheSeedHasAlwaysGiven) {
  EXPECT_EQ(turns_text(turns_of(3, baton(Kind::random, 5), meetings(3))),
            "2a 2b 1a 0b 2b 1b 0c 1c 1c 0c 0b 0a 0b 0a 0a 1a 1a 2a 2a 2a 1a 1b 0a 1b 1b 0b ");
}

TEST(BatonOrders, RoundRobinGoesThroughRanksAndStreams) {
  EXPECT_EQ(turns_text(turns_of(3, baton(Kind::round_robin), independent_fills(3, 2))), "0a 1a 2a 0a 1a 2a ");
  EXPECT_EQ(turns_text(turns_of(2, baton(Kind::round_robin), independent_fills(2, 2, {"a", "b"}))),
            "0a 1a 0b 1b 0a 1a 0b 1b ");
}

// Without other reasons to wait, each of the depth - 1 changes lets one stream stop before its end, and it
// goes on later: at most two more switches than the one from stream to stream.
TEST(BatonOrders, PctSwitchesAtItsChangePointsAlone) {
  const auto plans = independent_fills(2, 8);
  for (const int depth : {1, 2, 3}) {
    std::set<std::string> orders;
    int most = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      FabricOptions options = baton(Kind::pct, seed);
      options.order.depth = depth;
      options.order.expected_turns = expected_turns(plans);
      const std::vector<Turn> turns = turns_of(2, options, plans);
      ASSERT_EQ(turns.size(), 16u);
      orders.insert(turns_text(turns));
      most = std::max(most, switches(turns));
    }
    EXPECT_EQ(most, depth) << "depth " << depth;
    // Depth 1: which rank is first. Depth 2: where the first one stops too, after none to all of its 8 turns.
    if (depth == 1) {
      EXPECT_EQ(orders.size(), 2u);
    }
    if (depth == 2) {
      EXPECT_EQ(orders.size(), 16u);
    }
    if (depth == 3) {
      EXPECT_GT(orders.size(), 50u);
    }
  }
}

TEST(BatonOrders, PctLowersAStreamBelowThoseThatComeLater) {
  class Nothing final : public TurnInspector {
    TurnDetails details(const Turn&) const override { return {}; }
  };
  const std::vector<Turn> alone = {{0, 0}}, both = {{0, 0}, {1, 0}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto chooser = make_chooser({.kind = Kind::pct, .depth = 2, .expected_turns = 1}, seed);
    chooser->begin_run();
    EXPECT_EQ(chooser->choose(alone, Nothing()), 0u);  // it falls here
    EXPECT_EQ(chooser->choose(both, Nothing()), 1u);
  }
}

TEST(BatonOrders, PctTakesAllStreamsForFirstWithEqualChance) {
  const auto plans = independent_fills(2, 1, {"a", "b"});
  std::map<std::string, int> orders;
  for (std::uint64_t seed = 0; seed < 2400; ++seed) {
    FabricOptions options = baton(Kind::pct, seed);
    options.order.depth = 1;
    ++orders[turns_text(turns_of(2, options, plans))];
  }
  // 24 permutations, 100 times each on average; the seeds are fixed, so the counts are too.
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) EXPECT_GT(count, 50) << order;
}

TEST(BatonOrders, EqualSeedsGiveEqualTurnsInEveryRun) {
  const auto plans = meetings(4);
  for (const Kind kind : {Kind::random, Kind::round_robin, Kind::pct}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto twice = [&] {
        Fabric fabric(4, baton(kind, seed));
        execute_all(fabric, plans);
        execute_all(fabric, plans);
        return fabric.turns();
      };
      EXPECT_EQ(twice(), twice());
    }
  }
}

TEST(BatonOrders, TheOrdersSeedCountsBeforeTheFabrics) {
  const auto plans = meetings(4);
  for (const Kind kind : {Kind::random, Kind::pct}) {
    FabricOptions options = baton(kind, 1);
    options.order.seed = 2;
    EXPECT_EQ(turns_of(4, options, plans), turns_of(4, baton(kind, 2), plans));
    EXPECT_NE(turns_of(4, options, plans), turns_of(4, baton(kind, 1), plans));
  }
}

TEST(BatonOrders, GivenTurnsAreTakenAgain) {
  const auto plans = meetings(4);
  for (const Kind kind : {Kind::random, Kind::round_robin, Kind::pct}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      FabricOptions given = baton(Kind::given);
      given.order.turns = turns_of(4, baton(kind, seed), plans);
      EXPECT_EQ(turns_of(4, given, plans), given.order.turns) << "seed " << seed;
    }
  }
}

TEST(BatonOrders, AfterTheGivenTurnsTheLeastGoesOn) {
  FabricOptions given = baton(Kind::given);
  given.order.turns = {{1, 0}, {1, 0}};
  EXPECT_EQ(turns_text(turns_of(2, given, independent_fills(2, 3))), "1a 1a 0a 0a 0a 1a ");
}

TEST(BatonOrders, AGivenTurnThatIsNotPossibleIsAnError) {
  FabricOptions given = baton(Kind::given);
  given.order.turns = {{1, 0}, {1, 0}, {1, 0}};
  Fabric fabric(2, given);
  EXPECT_THAT(message_of<InvalidInput>([&] { execute_all(fabric, independent_fills(2, 2)); }),
              AllOf(HasSubstr("turn 2 of the given order, rank 1 stream 0, is not possible"),
                    HasSubstr("possible are rank 0 stream 0")));
}

TEST(BatonOrders, ASlowRankGoesOnWhenNobodyElseCan) {
  for (const Kind kind : {Kind::random, Kind::round_robin, Kind::pct, Kind::given}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      FabricOptions options = baton(kind, seed);
      options.order.slow_ranks = {1};
      std::vector<Turn> turns = turns_of(3, options, independent_fills(3, 4));
      ASSERT_EQ(turns.size(), 12u);
      EXPECT_TRUE(std::all_of(turns.begin() + 8, turns.end(), [](const Turn& turn) {
        return turn.rank == 1;
      })) << turns_text(turns);
      // Others wait for it where they must: nothing hangs.
      Fabric fabric(4, options);
      EXPECT_NO_THROW(execute_all(fabric, meetings(4)));
    }
  }
  FabricOptions options = baton(Kind::random);
  options.order.slow_ranks = {0, 1, 2, 3};
  Fabric all_slow(4, options);
  EXPECT_NO_THROW(execute_all(all_slow, meetings(4)));
}

TEST(BatonOrders, RanksThatNeverEndAreStoppedAfterTheMostTurns) {
  const auto plans = independent_fills(2, 1);
  for (const Kind kind : {Kind::random, Kind::round_robin, Kind::pct}) {
    FabricOptions options = baton(kind);
    options.order.most_turns = 100;
    Fabric fabric(2, options);
    const auto run = [&] {
      fabric.run([&](Rank rank, Device& device) {
        do {
          execute(plans[static_cast<std::size_t>(rank)], device);
        } while (rank == 1);
      });
    };
    EXPECT_THAT(message_of<Stall>(run), HasSubstr("rank 1 takes turn 101 of a run that may take 100"));
    EXPECT_NO_THROW(execute_all(fabric, good_plans(2)));  // the count begins again
  }
}

// A rank that pauses again and again, without a turn between, lets others go on.
TEST(BatonOrders, ARankThatPausesForOthersIsNotAlone) {
  class OneStream final : public RankInspector {
    void ready_streams(Rank, std::vector<StreamId>& streams) const override { streams = {0}; }
    TurnDetails details(const Turn&) const override { return {}; }
  };
  const OneStream inspector;
  for (const Kind kind : {Kind::round_robin, Kind::pct, Kind::given}) {
    RankThreads ranks(2, 1 << 18);
    TurnScheduler scheduler(2, 0, {.kind = kind}, ranks.baton(), inspector, nullptr);
    bool done = false;  // of who holds the baton
    scheduler.begin_run();
    ranks.run([&](Rank self) {
      scheduler.enter(self);
      const StreamId stream = 0;
      while (self == 0 && !done) scheduler.pause(0);
      for (int i = 0; self == 1 && i < 3; ++i) EXPECT_EQ(scheduler.choose(1, std::span(&stream, 1)), 0);
      done = true;
      EXPECT_EQ(scheduler.finish(self), Progress::possible);
      scheduler.hand_over(self);
    });
  }
}

// Whether a rank is a thread or a fiber is seen by nobody: not in the turns, not in the records, not in
// errors.
TEST(BatonOrders, FibersTakeTheTurnsOfThreads) {
  for (const Kind kind : {Kind::random, Kind::round_robin, Kind::pct}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      FabricOptions options = baton(kind, seed);
      Fabric fibers(4, options);
      options.fibers = false;
      Fabric threads(4, options);
      for (Fabric* fabric : {&fibers, &threads}) execute_all(*fabric, meetings(4));
      EXPECT_EQ(fibers.turns(), threads.turns());
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(fibers.traces()[static_cast<std::size_t>(rank)].observed,
                  threads.traces()[static_cast<std::size_t>(rank)].observed);
      }
    }
  }
}

// A rank may be in the middle of handling an exception, or of unwinding its stack, when others go on and do
// the same.
TEST(BatonOrders, EachRankHandlesItsOwnExceptions) {
  for (const bool fibers : {true, false}) {
    FabricOptions options = baton(Kind::round_robin);
    options.fibers = fibers;
    Fabric fabric(3, options);
    const std::vector<Plan> plans = meetings(3);
    std::vector<std::string> caught(3);
    fabric.run([&](Rank rank, Device& device) {
      const Plan& plan = plans[static_cast<std::size_t>(rank)];
      try {
        throw InvalidInput(str("of rank ", rank));
      } catch (const InvalidInput&) {
        execute(plan, device);
        try {
          std::rethrow_exception(std::current_exception());
        } catch (const InvalidInput& again) {
          caught[static_cast<std::size_t>(rank)] = again.what();
        }
      }
      EXPECT_EQ(std::uncaught_exceptions(), 0);
    });
    EXPECT_THAT(caught, ElementsAre("of rank 0", "of rank 1", "of rank 2"));
  }
}

TEST(BatonOrders, ValuesThatMeanNothingAreRefused) {
  const auto refusal = [](const FabricOptions& options) {
    return message_of<InvalidInput>([&] { Fabric fabric(2, options); });
  };
  FabricOptions options = baton(Kind::pct);
  options.order.depth = 0;
  EXPECT_THAT(refusal(options), HasSubstr("depth 0; use at least 1"));
  options = baton(Kind::pct);
  options.order.expected_turns = 0;
  EXPECT_THAT(refusal(options), HasSubstr("cannot expect 0 turns"));
  options = baton(Kind::random);
  options.order.slow_ranks = {2};
  EXPECT_THAT(refusal(options), HasSubstr("rank 2 cannot be slow: the fabric has ranks 0 to 1"));
  options.order = {.most_turns = -1};
  EXPECT_THAT(refusal(options), HasSubstr("at most -1 turns"));
  EXPECT_THAT(refusal(baton(Kind::chosen)), HasSubstr("without a chooser"));
}

TEST(BatonOrders, TurnsAreCountedBeforehand) {
  for (const int world_size : {2, 4}) {
    const auto plans = meetings(world_size);
    EXPECT_EQ(static_cast<std::int64_t>(turns_of(world_size, baton(Kind::round_robin), plans).size()),
              expected_turns(plans));
  }
}

}  // namespace
}  // namespace cp::sim
