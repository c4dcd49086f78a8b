// What is read has been written, and outputs are written whole: for each rule a set of plans that keeps it,
// and one that breaks this rule alone.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

TEST(CheckContents, NothingIsReadBeforeItIsWritten) {
  std::vector<Plan> plans = gather_plans();
  kernel_at<Copy>(plans[1], 0).in.shape = {3};
  kernel_at<Copy>(plans[1], 0).out.shape = {3};
  expect_error<CheckFailure>(
      plans, {"rank 1: step 1 all_gather \"gather\" reads t[3, 4), which nothing has written"});
}

TEST(CheckContents, WhatIsUpdatedIsReadFirst) {
  const auto plans = [](bool filled) {
    return write_plans(1, [&](Rank, PlanWriter& plan) {
      const View x = flat_view(plan.input("x", 4), 0, 4), y = flat_view(plan.output("y", 4), 0, 4);
      if (filled) plan.add(0, Fill{y, 0});
      plan.add(0, Accumulate{ReduceOp::sum, x, y}, {}, "add");
    });
  };
  expect_clean(plans(true));
  expect_error<CheckFailure>(plans(false),
                             {"step 0 accumulate \"add\" reads y[0, 4), which nothing has written"});
}

TEST(CheckContents, InputsAndInoutsAreWrittenAtTheStart) {
  for (const bool writable : {false, true}) {
    expect_clean(write_plans(1, [&](Rank, PlanWriter& plan) {
      const BufferId x = writable ? plan.inout("x", 4) : plan.input("x", 4);
      plan.add(0, Copy{flat_view(x, 0, 4), flat_view(plan.output("y", 4), 0, 4)});
    }));
  }
}

TEST(CheckContents, OutputsAreWrittenWhole) {
  std::vector<Plan> plans = write_plans(1, [](Rank, PlanWriter& plan) {
    const BufferId x = plan.input("x", 8), y = plan.output("y", 24);
    // Three columns of 8 rows.
    for (std::int64_t column = 0; column < 3; ++column) {
      plan.add(0, Copy{flat_view(x, 0, 8), View{y, column, {8}, {3}, {}}});
    }
    plan.output("nothing", 0);
  });
  expect_clean(plans);
  plans[0].segments.erase(plans[0].segments.begin() + 1);
  expect_error<CheckFailure>(plans, {"rank 0: no step writes y[1, 2) of the outputs"});
}

TEST(CheckContents, AStackIsWrittenWholeByAllIterations) {
  const auto plans = [](std::int64_t iterations) {
    return write_plans(1, [&](Rank, PlanWriter& plan) {
      const BufferId x = plan.input("x", 2), y = plan.output("y", 200);
      plan.begin_repeat(iterations);
      plan.add(0, Copy{flat_view(x, 0, 2), flat_view(y, 0, 2, {.stride = 2})});
      plan.end_repeat();
    });
  };
  expect_clean(plans(100));
  expect_error<CheckFailure>(plans(99), {"no step writes y[198, 200) of the outputs"});
}

TEST(CheckContents, ReceivesWriteTheirViewsAlone) {
  std::vector<Plan> plans = exchange_plans();
  plans[1].buffers[1].numel = 5;
  expect_error<CheckFailure>(plans, {"rank 1: no step writes y[3, 5) of the outputs"});
}

TEST(CheckContents, ABufferIsLostWhenAnotherTakesItsBytes) {
  // Within an iteration a and b are used one after the other; but what a holds is read in the next iteration.
  const auto plans = [](bool shared) {
    std::vector<Plan> made = write_plans(1, [](Rank, PlanWriter& plan) {
      const View x = flat_view(plan.input("x", 4), 0, 4), y = flat_view(plan.output("y", 4), 0, 4);
      const View a = flat_view(plan.temporary("a", 4), 0, 4), b = flat_view(plan.temporary("b", 4), 0, 4);
      plan.add(0, Copy{x, a}, {}, "first a");
      plan.begin_repeat(5);
      plan.add(0, Copy{a, y}, {}, "use a");
      plan.add(0, Copy{x, a}, {}, "next a");
      plan.add(0, Copy{x, b}, {}, "make b");
      plan.add(0, Copy{b, y}, {}, "use b");
      plan.end_repeat();
    });
    if (shared) made[0].buffers[3].offset_bytes = 8;
    return made;
  };
  expect_clean(plans(false));
  expect_error<CheckFailure>(plans(true),
                             {"rank 0: step 1 copy \"use a\" (iteration 1) reads a[2, 4), but step 3 copy "
                              "\"make b\" (iteration 0) wrote b[0, 2) into the same bytes of the arena"});
}

TEST(CheckContents, HugeTensorsCostByTheirRuns) {
  const std::int64_t huge = std::int64_t{1} << 40;
  std::vector<Plan> plans = write_plans(1, [&](Rank, PlanWriter& plan) {
    const BufferId x = plan.input("x", huge), y = plan.output("y", huge);
    for (std::int64_t half = 0; half < 2; ++half) {
      const View window{y, half * huge / 8, {4, huge / 8}, {huge / 4, 1}, {}};
      plan.add(0, Copy{flat_view(x, 0, huge / 2), window});
    }
  });
  expect_clean(plans);
  kernel_at<Copy>(plans[0], 1).out.offset -= 1;
  expect_error<CheckFailure>(plans,
                             {str("no step writes y[", huge / 4 - 1, ", ", huge / 4, ") of the outputs")});
}

// An iteration reads a as the one before has left it, but b was written there since.
TEST(CheckContents, WhatIsCarriedKeepsItsBytes) {
  const auto plans = [](std::int64_t b_bytes) {
    std::vector<Plan> made = write_plans(1, [&](Rank, PlanWriter& plan) {
      const BufferId x = plan.inout("x", 4), a = plan.temporary("a", 4), b = plan.temporary("b", 4);
      const auto copy = [&](BufferId from, BufferId to) {
        plan.add(0, Copy{flat_view(from, 0, 4), flat_view(to, 0, 4)});
      };
      copy(x, a);
      plan.begin_repeat(3);
      copy(a, x), copy(x, a);
      copy(x, b), copy(b, x);
      plan.end_repeat();
    });
    made[0].buffers[2].offset_bytes = b_bytes;
    made[0].arena_bytes = 32;
    return made;
  };
  expect_clean(plans(16));
  expect_error<CheckFailure>(
      plans(0), {"step 1 copy (iteration 1) reads a[0, 4), but step 3 copy (iteration 0) wrote b[0, 4)"});
}

}  // namespace
}  // namespace cp::testing
