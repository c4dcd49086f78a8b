// Steps, edges, streams and groups of a plan: for each rule a set of plans that keeps it, and one that breaks
// this rule alone.
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

TEST(Check, ACleanSetPasses) {
  expect_clean({});
  expect_clean(gather_plans());
}

TEST(Check, PlansComeInAnyOrder) {
  std::vector<Plan> plans = gather_plans();
  std::swap(plans[0], plans[2]);
  expect_clean(plans);
}

TEST(CheckStructure, OnePlanPerRank) {
  std::vector<Plan> plans = gather_plans();
  plans.push_back(plans[1]);
  expect_error<CheckFailure>(plans, {"rank 1 has two plans"});
}

TEST(CheckStructure, PlansAreBuiltFromTheSameInputs) {
  std::vector<Plan> plans = gather_plans();
  plans[2].inputs = {0, 7};
  expect_error<CheckFailure>(plans, {"rank 2's plan was built from inputs 00000000000000000000000000000007",
                                     "rank 0's from 00000000000000000000000000000000"});
}

TEST(CheckStructure, GroupsOfAPlanHoldItsRank) {
  std::vector<Plan> plans = gather_plans();
  plans[1].groups.push_back({"dp", {0, 2}});
  expect_error<CheckFailure>(plans, {"rank 1: is not a member of group dp[0,2]"});
}

TEST(CheckStructure, StepsAreValid) {
  std::vector<Plan> plans = gather_plans();
  kernel_at<Copy>(plans[1], 0).in.offset = 1;
  expect_error<CheckFailure>(plans, {"step copy \"pack\" of rank 1", "x+1[4]", "(step 0 of rank 1)"});
}

TEST(CheckStructure, ViewsStayInBoundsInEveryIteration) {
  const auto plans = [](std::int64_t iterations) {
    return write_plans(1, [&](Rank, PlanWriter& plan) {
      const BufferId x = plan.input("x", 200), y = plan.output("y", 2);
      plan.begin_repeat(iterations);
      plan.add(0, Copy{flat_view(x, 0, 2, {.stride = 2}), flat_view(y, 0, 2)});
      plan.end_repeat();
    });
  };
  expect_clean(plans(100));
  expect_error<CheckFailure>(plans(101), {"step copy of rank 0", "x+0[2]", "101 iterations"});
}

TEST(CheckStructure, EdgesNameStepsOfThePlan) {
  std::vector<Plan> plans = gather_plans();
  step_at(plans[0], 1).after = {{2, 0}};
  expect_error<CheckFailure>(
      plans, {"rank 0: step 1 all_gather \"gather\" waits for step 2, but the plan's steps are 0 to 1"});
}

TEST(CheckStructure, EdgesPointBackward) {
  std::vector<Plan> plans = gather_plans();
  step_at(plans[0], 0).after = {{1, 0}};
  expect_error<CheckFailure>(
      plans,
      {"rank 0: step 0 copy \"pack\" waits for step 1 all_gather \"gather\", which is issued no earlier"});
  step_at(plans[0], 0).after = {{0, 0}};
  expect_error<CheckFailure>(
      plans, {"rank 0: step 0 copy \"pack\" waits for step 0 copy \"pack\", which is issued no earlier"});
}

TEST(CheckStructure, OnlyARepeatHasEarlierIterations) {
  std::vector<Plan> plans = gather_plans();
  step_at(plans[0], 1).after = {{0, 1}};
  expect_error<CheckFailure>(
      plans, {"rank 0: step 1 all_gather \"gather\" waits for step 0 copy \"pack\" 1 iterations"});
}

TEST(CheckStructure, AGroupHasOneStream) {
  const auto plans = [](StreamId second) {
    return write_plans(
        2,
        [&](Rank, PlanWriter& plan) {
          const GroupId group = plan.group("tp", {0, 1});
          const BufferId x = plan.inout("x", 4), y = plan.inout("y", 4);
          plan.add(0, AllReduce{group, ReduceOp::sum, flat_view(x, 0, 4), flat_view(x, 0, 4)});
          plan.add(second, AllReduce{group, ReduceOp::sum, flat_view(y, 0, 4), flat_view(y, 0, 4)});
        },
        {"a", "b"});
  };
  expect_clean(plans(0));
  expect_error<CheckFailure>(plans(1), {"rank 0: step 1 all_reduce issues group tp[0,1] on stream 1",
                                        "step 0 all_reduce on stream 0"});
}

}  // namespace
}  // namespace cp::testing
