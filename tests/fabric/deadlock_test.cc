// Ranks that wait for each other, or for one that will never come.
#include <atomic>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = BatonOrder::Kind;

// The Deadlock of a run; the fabric works again after it.
std::string deadlock_of(Fabric& fabric, const std::vector<Plan>& plans) {
  const std::string message = message_of<Deadlock>([&] { execute_all(fabric, plans); });
  execute_all(fabric, good_plans(fabric.world_size()));
  return message;
}

class DeadlockReport : public ::testing::TestWithParam<FabricOptions> {};

TEST_P(DeadlockReport, TwoGroupsInOppositeOrderAreACycle) {
  Fabric fabric(2, GetParam());
  const auto plans = plans_of(2, [](PlanBuilder& b, Rank rank) {
    for (const char* group : {"both", rank == 0 ? "a" : "b", rank == 0 ? "b" : "a"})
      add_all_reduce(b, group, {0, 1});
  });
  EXPECT_THAT(
      deadlock_of(fabric, plans),
      AllOf(HasSubstr("the cycle"),
            HasSubstr("rank 0 waits in all_reduce #0 on a[0,1] (stream s) for rank 1"),
            HasSubstr("rank 1 waits in all_reduce #0 on b[0,1] (stream s) for rank 0 [step 1]"),
            HasSubstr("no order of ranks and streams could have ended"), Not(HasSubstr("has not launched"))));
}

TEST_P(DeadlockReport, ACycleOfThreeAndWhoElseWaits) {
  // Ranks 0, 1 and 2 hold each other up; 3 and 4 wait for 0.
  Fabric fabric(5, GetParam());
  const auto plans = plans_of(5, [](PlanBuilder& b, Rank rank) {
    const std::vector<Rank> all = ranks_up_to(5);
    if (rank < 3) {
      const auto add = [&](Rank of) {
        add_all_reduce(b, std::string(1, static_cast<char>('a' + of)), {of, (of + 1) % 3});
      };
      add(rank);
      add((rank + 2) % 3);
    }
    add_all_reduce(b, "all", all);
  });
  EXPECT_THAT(deadlock_of(fabric, plans),
              AllOf(HasSubstr("rank 0 waits in all_reduce #0 on a[0,1] (stream s) for rank 1"),
                    HasSubstr("rank 1 waits in all_reduce #0 on b[1,2] (stream s) for rank 2"),
                    HasSubstr("rank 2 waits in all_reduce #0 on c[2,0] (stream s) for rank 0"),
                    HasSubstr("waiting as well: ranks 3,4")));
}

TEST_P(DeadlockReport, EventsBetweenStreamsAreFollowed) {
  // Each rank has both groups on streams of their own, but an event makes one wait for the other.
  Fabric fabric(2, GetParam());
  const auto plans = plans_of(2, [](PlanBuilder& b, Rank rank) {
    const GroupId a = b.group("a", {0, 1}), g = b.group("b", {0, 1});
    const StreamId stream_a = b.stream("for a"), stream_b = b.stream("for b");
    const View data = flat_view(b.inout("data", DType::f32, 4), 0, 4);
    const auto add_a = [&] { b.add(stream_a, AllReduce{a, ReduceOp::sum, data, data}); };
    const auto add_b = [&] { b.add(stream_b, AllReduce{g, ReduceOp::sum, data, data}); };
    if (rank == 0) add_a(), add_b();
    if (rank == 1) add_b(), add_a();
  });
  EXPECT_THAT(deadlock_of(fabric, plans),
              AllOf(HasSubstr("the cycle"),
                    HasSubstr("rank 0 waits in all_reduce #0 on a[0,1] (stream for a) for rank 1"),
                    HasSubstr("rank 1 waits in all_reduce #0 on b[0,1] (stream for b) for rank 0"),
                    Not(HasSubstr("has not launched"))));
}

TEST_P(DeadlockReport, GroupsOfOneNameAndOtherRanksNeverMeet) {
  Fabric fabric(3, GetParam());
  const auto plans = plans_of(3, [](PlanBuilder& b, Rank rank) {
    add_all_reduce(b, "g", rank == 2 ? std::vector<Rank>{0, 1, 2} : std::vector<Rank>{0, 1});
    if (rank != 2) add_all_reduce(b, "other", {2, rank});
  });
  EXPECT_THAT(deadlock_of(fabric, plans), AllOf(HasSubstr("g[0,1,2]"), HasSubstr("other[2,")));
}

TEST_P(DeadlockReport, StepsAndIterationsAreNamed) {
  Fabric fabric(2, GetParam());
  const auto plans = plans_of(2, [](PlanBuilder& b, Rank rank) {
    b.begin_repeat(5);
    add_all_reduce(b, "both", {0, 1});
    if (rank == 1) add_all_reduce(b, "own", {1});
    b.end_repeat();
    for (const char* group : {rank == 0 ? "a" : "b", rank == 0 ? "b" : "a"}) add_all_reduce(b, group, {0, 1});
  });
  EXPECT_THAT(deadlock_of(fabric, plans),
              AllOf(HasSubstr("rank 0 waits in all_reduce #0 on a[0,1] (stream s) for rank 1 [step 1]"),
                    HasSubstr("rank 1 waits in all_reduce #0 on b[0,1] (stream s) for rank 0 [step 2]")));
  // In the third iteration each waits in the other group.
  const auto repeated = plans_of(2, [](PlanBuilder& b, Rank rank) {
    b.begin_repeat(2);
    add_all_reduce(b, "a", {0, 1});
    b.end_repeat();
    b.begin_repeat(3);
    add_all_reduce(b, "b", {0, 1});
    b.end_repeat();
    if (rank == 0) add_all_reduce(b, "b", {0, 1});
    add_all_reduce(b, "a", {0, 1});
    if (rank == 1) add_all_reduce(b, "b", {0, 1});
  });
  EXPECT_THAT(deadlock_of(fabric, repeated),
              HasSubstr("rank 0 waits in all_reduce #3 on b[0,1] (stream s) for rank 1 [step 2]"));
  const auto looping = plans_of(2, [](PlanBuilder& b, Rank rank) {
    b.begin_repeat(rank == 0 ? 4 : 2);
    add_all_reduce(b, "a", {0, 1});
    b.end_repeat();
    add_all_reduce(b, "b", {0, 1});
  });
  EXPECT_THAT(
      deadlock_of(fabric, looping),
      HasSubstr("rank 0 waits in all_reduce #2 on a[0,1] (stream s) for rank 1 [step 0, iteration 2]"));
}

TEST_P(DeadlockReport, OneIterationTooFew) {
  Fabric fabric(3, GetParam());
  const auto plans = plans_of(3, [](PlanBuilder& b, Rank rank) {
    b.begin_repeat(rank == 1 ? 4 : 5);
    add_all_reduce(b, "g", ranks_up_to(3));
    b.end_repeat();
  });
  EXPECT_THAT(deadlock_of(fabric, plans),
              AllOf(HasSubstr("all_reduce #4 on g[0,1,2]"), HasSubstr("rank 1, whose body has returned")));
}

TEST_P(DeadlockReport, ARankThatNeverIssuesWhatOthersWaitFor) {
  // Rank 2 waits in another group for rank 0, and has nothing on the group of all.
  Fabric fabric(3, GetParam());
  const auto plans = plans_of(3, [](PlanBuilder& b, Rank rank) {
    if (rank < 2) add_all_reduce(b, "all", ranks_up_to(3));
    if (rank != 1) add_all_reduce(b, "ends", {0, 2});
  });
  EXPECT_THAT(deadlock_of(fabric, plans),
              AllOf(HasSubstr("on all[0,1,2] (stream s) for rank 2"),
                    HasSubstr("rank 2 waits in all_reduce #0 on ends[0,2] (stream s) for rank 0, "
                              "and has not launched what is waited for")));
}

TEST_P(DeadlockReport, ARankThatReturnsIsNamed) {
  Fabric fabric(4, GetParam());
  const auto plans = good_plans(4);
  for (int repetition = 0; repetition < 20; ++repetition) {
    const auto run = [&] {
      fabric.run([&](Rank rank, Device& device) {
        if (rank != 2) execute(plans[static_cast<std::size_t>(rank)], device);
      });
    };
    EXPECT_THAT(message_of<Deadlock>(run), AllOf(HasSubstr("all_reduce #0 on world[0,1,2,3]"),
                                                 HasSubstr("for rank 2, whose body has returned")));
  }
  execute_all(fabric, plans);
}

std::string options_name(const ::testing::TestParamInfo<FabricOptions>& info) {
  if (info.param.schedule == Schedule::parallel) return "Parallel";
  const Kind kind = info.param.order.kind;
  if (kind == Kind::random) return str("Baton", info.param.seed);
  return kind == Kind::pct ? str("Pct", info.param.seed) : "RoundRobin";
}
INSTANTIATE_TEST_SUITE_P(Schedules, DeadlockReport,
                         ::testing::Values(FabricOptions{}, baton(Kind::random, 1), baton(Kind::random, 2),
                                           baton(Kind::random, 3), baton(Kind::pct, 1), baton(Kind::pct, 2),
                                           baton(Kind::round_robin)),
                         options_name);

TEST(DeadlockReportTime, ARankThatReturnsIsReportedWhileOthersRun) {
  // Rank 2 runs until rank 0 has its error: were it reported only when nobody runs, this would never end.
  Fabric fabric(3);
  const auto plans = plans_of(3, [](PlanBuilder& b, Rank rank) {
    if (rank < 2) add_all_reduce(b, "pair", {0, 1});
  });
  std::atomic<bool> reported = false;
  const auto run = [&] {
    fabric.run([&](Rank rank, Device& device) {
      if (rank == 2) {
        while (!reported) std::this_thread::yield();
      } else if (rank == 0) {
        EXPECT_ANY_THROW(execute(plans[0], device));
        reported = true;
      }
    });
  };
  EXPECT_THAT(message_of<Deadlock>(run), HasSubstr("for rank 1, whose body has returned"));
}

TEST(DeadlockReportSize, AThousandRanksWaitForOne) {
  Fabric fabric(1024);
  const auto plans = plans_of(1024, [](PlanBuilder& b, Rank rank) {
    if (rank == 777) add_all_reduce(b, "pair", {776, 777});
    add_all_reduce(b, "all", ranks_up_to(1024));
    if (rank == 776) add_all_reduce(b, "pair", {776, 777});
  });
  EXPECT_THAT(deadlock_of(fabric, plans),
              AllOf(HasSubstr("for rank 777"), HasSubstr("rank 777 waits in all_reduce #0 on pair[776,777]"),
                    HasSubstr("for rank 776")));
}

}  // namespace
}  // namespace cp::sim
