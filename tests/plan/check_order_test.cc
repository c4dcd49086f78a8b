// Steps that touch the same elements: for each rule a set of plans that keeps it, and one that breaks this
// rule alone.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

constexpr StreamId kCompute = 0, kComm = 1;
const std::vector<std::string> kTwoStreams = {"compute", "comm"};

// `second` runs on another stream than `first`, with an edge or without. x is an input, t and y are already
// written.
std::vector<Plan> two_steps(const std::function<Work(const View& x, const View& t, const View& y)>& first,
                            const std::function<Work(const View& x, const View& t, const View& y)>& second,
                            bool edge) {
  return write_plans(
      1,
      [&](Rank, PlanWriter& plan) {
        const View x = flat_view(plan.input("x", 4), 0, 4), t = flat_view(plan.temporary("t", 4), 0, 4);
        const View y = flat_view(plan.output("y", 4), 0, 4);
        plan.add(kComm, Fill{t, 0});
        plan.add(kComm, Fill{y, 0});
        const StepId start = plan.add(kComm, Fill{y, 1});
        const StepId one = plan.add(kCompute, first(x, t, y), {{start, 0}}, "first");
        plan.add(kComm, second(x, t, y), edge ? std::vector<Edge>{{one, 0}} : std::vector<Edge>{}, "second");
      },
      kTwoStreams);
}

TEST(CheckOrder, AReadComesAfterTheWrite) {
  const auto write = [](const View& x, const View& t, const View&) { return Work(Copy{x, t}); };
  const auto read = [](const View&, const View& t, const View& y) { return Work(Copy{t, y}); };
  expect_clean(two_steps(write, read, true));
  expect_error<CheckFailure>(
      two_steps(write, read, false),
      {"rank 0: step 4 copy \"second\" on stream comm reads t[0, 4), which step 3 copy "
       "\"first\" on stream compute writes; no edge orders the two"});
}

TEST(CheckOrder, AWriteComesAfterTheRead) {
  const auto read = [](const View&, const View& t, const View& y) { return Work(Copy{t, y}); };
  const auto write = [](const View& x, const View& t, const View&) { return Work(Copy{x, t}); };
  expect_clean(two_steps(read, write, true));
  expect_error<CheckFailure>(
      two_steps(read, write, false),
      {"rank 0: step 4 copy \"second\" on stream comm writes t[0, 4), which step 3 copy "
       "\"first\" on stream compute reads; no edge orders the two"});
}

TEST(CheckOrder, AWriteComesAfterTheWrite) {
  const auto write = [](const View& x, const View& t, const View&) { return Work(Copy{x, t}); };
  const auto half = [](const View& x, const View& t, const View&) {
    return Work(Copy{flat_view(x.buffer, 0, 1), flat_view(t.buffer, 3, 1)});
  };
  expect_clean(two_steps(write, half, true));
  expect_error<CheckFailure>(two_steps(write, half, false),
                             {"step 4 copy \"second\"", "writes t[3, 4), which step 3"});
}

TEST(CheckOrder, UnorderedStepsMayTouchOtherElements) {
  const auto even = [](const View& x, const View& t, const View&) {
    return Work(Copy{flat_view(x.buffer, 0, 2), View{t.buffer, 0, {2}, {2}, {}}});
  };
  const auto odd = [](const View& x, const View& t, const View&) {
    return Work(Copy{flat_view(x.buffer, 0, 2), View{t.buffer, 1, {2}, {2}, {}}});
  };
  expect_clean(two_steps(even, odd, false));
  expect_error<CheckFailure>(two_steps(even, even, false), {"writes t[0, 1), which step 3"});
}

TEST(CheckOrder, UnorderedStepsMayReadTheSame) {
  std::vector<Plan> plans = write_plans(
      1,
      [](Rank, PlanWriter& plan) {
        const View x = flat_view(plan.inout("x", 4), 0, 4);
        const View y = flat_view(plan.output("y", 4), 0, 4), z = flat_view(plan.output("z", 4), 0, 4);
        plan.add(kCompute, Copy{x, y}, {}, "to y");
        plan.add(kComm, Copy{x, z}, {}, "to z");
        plan.add(kComm, Scale{x, 2}, {{0, 0}}, "double");
      },
      kTwoStreams);
  expect_clean(plans);
  // The last one comes after one of the readers by its stream, after the other by its edge.
  step_at(plans[0], 2).after.clear();
  expect_error<CheckFailure>(
      plans, {"step 2 scale \"double\"", "writes x[0, 4), which step 0 copy \"to y\"", "reads"});
}

TEST(CheckOrder, EdgesAreTransitive) {
  const auto plans = [](std::vector<Edge> last) {
    return write_plans(1,
                       [&](Rank, PlanWriter& plan) {
                         const View x = flat_view(plan.inout("x", 4), 0, 4),
                                    a = flat_view(plan.inout("a", 4), 0, 4);
                         const View y = flat_view(plan.output("y", 4), 0, 4);
                         plan.add(0, Scale{x, 2});
                         plan.add(0, Scale{a, 2});
                         plan.add(1, Copy{a, y}, {{1, 0}});
                         plan.add(2, Scale{x, 2}, last);
                       },
                       {"a", "b", "c"});
  };
  expect_clean(plans({{2, 0}}));
  expect_error<CheckFailure>(plans({}),
                             {"step 3 scale on stream c reads x[0, 4), which step 0 scale on stream a"});
}

TEST(CheckOrder, BuffersThatShareBytesConflict) {
  const auto plans = [](bool edge) {
    std::vector<Plan> made = write_plans(
        1,
        [&](Rank, PlanWriter& plan) {
          const View x = flat_view(plan.input("x", 4), 0, 4);
          const View a = flat_view(plan.temporary("a", 4), 0, 4), b = flat_view(plan.temporary("b", 4), 0, 4);
          const View y = flat_view(plan.output("y", 4), 0, 4), z = flat_view(plan.output("z", 4), 0, 4);
          plan.add(kCompute, Copy{x, a});
          plan.add(kCompute, Copy{a, y}, {}, "last use of a");
          plan.add(kComm, Copy{x, b}, edge ? std::vector<Edge>{{1, 0}} : std::vector<Edge>{},
                   "first use of b");
          plan.add(kComm, Copy{b, z});
        },
        kTwoStreams);
    made[0].buffers[2].offset_bytes = 8;  // b's first half is a's second
    return made;
  };
  expect_clean(plans(true));
  expect_error<CheckFailure>(plans(false),
                             {"step 2 copy \"first use of b\" on stream comm writes b[0, 2), which",
                              "step 0 copy on stream compute writes"});
}

// In each iteration x -> a -> y, on another stream, and x -> b -> x; b has a's bytes, and lives before it or
// behind it.
TEST(CheckOrder, BuffersOfABodyTakeTurnsOverTheIterations) {
  const auto plans = [](bool b_first, const std::vector<Edge>& b_after, std::int64_t iterations = 7) {
    std::vector<Plan> made = write_plans(
        1,
        [&](Rank, PlanWriter& plan) {
          const BufferId x = plan.inout("x", 4), y = plan.output("y", 4), a = plan.temporary("a", 4),
                         b = plan.temporary("b", 4);
          const auto copy = [&](StreamId on, BufferId from, BufferId to, const std::vector<Edge>& after) {
            plan.add(on, Copy{flat_view(from, 0, 4), flat_view(to, 0, 4)}, after);
          };
          plan.begin_repeat(iterations);
          if (b_first) copy(kCompute, x, b, b_after), copy(kCompute, b, x, {});
          copy(kCompute, x, a, {{b_first ? 3 : 1, 1}});
          copy(kComm, a, y, {{b_first ? 2 : 0, 0}});
          if (!b_first) copy(kCompute, x, b, b_after), copy(kCompute, b, x, {});
          plan.end_repeat();
        },
        kTwoStreams);
    made[0].buffers[3].offset_bytes = 0;
    made[0].arena_bytes = 16;
    return made;
  };
  expect_clean(plans(false, {{1, 0}}));
  expect_error<CheckFailure>(plans(false, {}),
                             {"step 2 copy (iteration 0) on stream compute writes b[0, 4), which",
                              "step 1 copy (iteration 0) on stream comm reads"});
  // The next iteration's b must wait for the reading of this one's a.
  expect_clean(plans(true, {{3, 1}}));
  expect_clean(plans(true, {}, 1));
  for (const std::int64_t iterations : {2, 3, 100}) {
    expect_error<CheckFailure>(plans(true, {}, iterations),
                               {"step 0 copy (iteration 1) on stream compute writes b[0, 4), which",
                                "step 3 copy (iteration 0) on stream comm reads"});
    expect_error<CheckFailure>(plans(true, {{3, 2}}, iterations), {"step 0 copy (iteration 1)"});
  }
}

// Gathers into two slots ahead of their use.
std::vector<Plan> slot_plans(std::int64_t iterations, const std::vector<Edge>& free,
                             const std::vector<Edge>& ready, std::int64_t slots = 2) {
  return write_plans(
      1,
      [&](Rank, PlanWriter& plan) {
        const BufferId x = plan.input("x", 4), t = plan.temporary("t", 4 * slots), sum = plan.inout("sum", 4);
        const View slot = flat_view(t, 0, 4, {.stride = 4, .period = slots});
        plan.begin_repeat(iterations);
        plan.add(kComm, Copy{flat_view(x, 0, 4), slot}, free, "fill");
        plan.add(kCompute, Accumulate{ReduceOp::sum, slot, flat_view(sum, 0, 4)}, ready, "use");
        plan.end_repeat();
      },
      kTwoStreams);
}

TEST(CheckOrder, ASlotIsFilledAgainOnlyAfterItsUse) {
  expect_clean(slot_plans(9, {{1, 2}}, {{0, 0}}));
  expect_clean(slot_plans(9, {{1, 1}}, {{0, 0}}));
  expect_clean(slot_plans(2, {}, {{0, 0}}));  // each slot is filled once
  for (const std::int64_t iterations : {3, 4, 5, 100, 1 << 30}) {
    expect_error<CheckFailure>(slot_plans(iterations, {}, {{0, 0}}),
                               {"step 0 copy \"fill\" (iteration 2) on stream comm writes t[0, 4), which",
                                "step 1 accumulate \"use\" (iteration 0) on stream compute reads"});
  }
  expect_clean(slot_plans(100, {{1, 3}}, {{0, 0}}, 3));
  expect_error<CheckFailure>(slot_plans(100, {{1, 4}}, {{0, 0}}, 3), {"step 0 copy \"fill\" (iteration 3)"});
  expect_error<CheckFailure>(slot_plans(9, {{1, 3}}, {{0, 0}}), {"step 0 copy \"fill\" (iteration 2)"});
}

TEST(CheckOrder, ASlotIsUsedOnlyAfterItIsFilled) {
  expect_error<CheckFailure>(slot_plans(9, {{1, 2}}, {}),
                             {"step 1 accumulate \"use\" (iteration 0)", "reads t[0, 4)"});
  // The edge of the previous iteration is none in the first.
  expect_error<CheckFailure>(slot_plans(9, {{1, 2}}, {{0, 1}}), {"step 1 accumulate \"use\" (iteration 0)"});
}

TEST(CheckOrder, AfterARepeatItsLastIterationCounts) {
  const auto plans = [](std::int64_t iterations, std::int64_t slot, const std::vector<Edge>& after) {
    return write_plans(
        1,
        [&](Rank, PlanWriter& plan) {
          const BufferId x = plan.input("x", 1), t = plan.temporary("t", 3), y = plan.output("y", 1);
          plan.begin_repeat(iterations);
          plan.add(kComm, Copy{flat_view(x, 0, 1), flat_view(t, 0, 1, {.stride = 1, .period = 3})}, {},
                   "fill");
          plan.end_repeat();
          plan.add(kCompute, Copy{flat_view(t, slot, 1), flat_view(y, 0, 1)}, after, "read");
        },
        kTwoStreams);
  };
  for (const std::int64_t iterations : {1, 2, 3, 4, 5, 6, 7, 100, 101, 102}) {
    expect_clean(plans(iterations, (iterations - 1) % 3, {{0, 0}}));
    expect_error<CheckFailure>(plans(iterations, (iterations - 1) % 3, {}),
                               {"step 1 copy \"read\"", "reads t["});
  }
  expect_error<CheckFailure>(plans(2, 2, {{0, 0}}),
                             {"step 1 copy \"read\" reads t[2, 3), which nothing has written"});
}

TEST(CheckOrder, AfterARepeatTheSlotsAreThoseOfTheTrueLastIterations) {
  // `use` waits for the fill of the iteration before; so does whatever follows it: the newest slot may not be
  // full yet.
  const auto plans = [](std::int64_t iterations, std::int64_t slot) {
    return write_plans(
        1,
        [&](Rank, PlanWriter& plan) {
          const BufferId x = plan.input("x", 1), t = plan.temporary("t", 3), y = plan.output("y", 1);
          const Advance newest{.stride = 1, .period = 3, .phase = 0},
              previous{.stride = 1, .period = 3, .phase = 2};
          plan.add(kComm, Fill{flat_view(t, 0, 3), 0});
          plan.begin_repeat(iterations);
          plan.add(kComm, Copy{flat_view(x, 0, 1), flat_view(t, 0, 1, newest)}, {{2, 1}}, "fill");
          plan.add(kCompute, Copy{flat_view(t, 0, 1, previous), flat_view(y, 0, 1)}, {{0, 0}, {1, 1}}, "use");
          plan.end_repeat();
          plan.add(kCompute, Copy{flat_view(t, slot, 1), flat_view(y, 0, 1)}, {}, "read");
        },
        kTwoStreams);
  };
  for (std::int64_t iterations = 3; iterations < 20; ++iterations) {
    for (std::int64_t slot = 0; slot < 3; ++slot) {
      if (slot == (iterations - 1) % 3) {
        expect_error<CheckFailure>(plans(iterations, slot),
                                   {"step 3 copy \"read\"", "which step 1 copy \"fill\""});
      } else {
        expect_clean(plans(iterations, slot));
      }
    }
  }
}

TEST(CheckOrder, WaitsCrossALongRepeat) {
  // The wait from the first step to the last passes the Repeat by two edges of 5 iterations back each: there
  // is one where the Repeat has 11 iterations.
  const auto plans = [](std::int64_t iterations) {
    return write_plans(
        1,
        [&](Rank, PlanWriter& plan) {
          const View x = flat_view(plan.inout("x", 4), 0, 4), a = flat_view(plan.inout("a", 4), 0, 4);
          const View b = flat_view(plan.inout("b", 4), 0, 4), c = flat_view(plan.inout("c", 4), 0, 4);
          plan.add(0, Scale{x, 2});
          plan.begin_repeat(iterations);
          plan.add(0, Scale{a, 2});
          plan.add(1, Scale{b, 2}, {{1, 5}});
          plan.add(2, Scale{c, 2}, {{2, 5}});
          plan.end_repeat();
          plan.add(2, Scale{x, 2});
        },
        {"s0", "s1", "s2"});
  };
  expect_error<CheckFailure>(plans(10),
                             {"step 4 scale on stream s2 reads x[0, 4), which step 0 scale on stream s0"});
  expect_clean(plans(11));
  expect_clean(plans(1000));
}

TEST(CheckOrder, StacksAreFollowedThroughAllIterations) {
  // Iteration i writes element i, and the other stream reads element 99 - i: they meet half-way.
  const auto plans = [](const std::vector<Edge>& write_after, const std::vector<Edge>& read_after) {
    return write_plans(
        1,
        [&](Rank, PlanWriter& plan) {
          const BufferId s = plan.inout("s", 100), y = plan.output("y", 1);
          plan.begin_repeat(100);
          plan.add(kCompute, Fill{flat_view(s, 0, 1, {.stride = 1}), 1}, write_after, "write");
          plan.add(kComm, Copy{flat_view(s, 99, 1, {.stride = -1}), flat_view(y, 0, 1)}, read_after, "read");
          plan.end_repeat();
        },
        kTwoStreams);
  };
  expect_clean(plans({{1, 1}}, {{0, 0}}));
  expect_error<CheckFailure>(plans({{1, 1}}, {}),
                             {"step 1 copy \"read\" (iteration 50) on stream comm reads s[49, 50), which",
                              "step 0 fill \"write\" (iteration 49)"});
  expect_error<CheckFailure>(plans({}, {{0, 0}}),
                             {"step 0 fill \"write\" (iteration 50)", "writes s[50, 51), which",
                              "step 1 copy \"read\" (iteration 49)", "reads"});
}

}  // namespace
}  // namespace cp::testing
