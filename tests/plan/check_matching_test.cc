// Groups and collectives that ranks have to agree on: for each rule a set of plans that keeps it, and one
// that breaks this rule alone.
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

// ---- groups ----

TEST(CheckGroups, EveryMemberHasAPlan) {
  std::vector<Plan> plans = gather_plans();
  plans.pop_back();
  expect_error<CollectiveMismatch>(plans, {"rank 0 has group tp[0,1,2], but there is no plan for rank 2"});
}

TEST(CheckGroups, EveryMemberHasTheGroup) {
  std::vector<Plan> plans = gather_plans();
  plans[1].groups[0].name = "dp";
  expect_error<CollectiveMismatch>(plans, {"but the plan of rank", "has not; it has"});
  plans = gather_plans();
  plans[1].groups.clear();
  plans[1].segments.clear();
  plans[1].buffers.clear();
  expect_error<CollectiveMismatch>(
      plans, {"rank 0 has group tp[0,1,2], but the plan of rank 1 has not; it has no group"});
}

TEST(CheckGroups, MembersAgreeOnTheOrderOfRanks) {
  std::vector<Plan> plans = gather_plans();
  plans[1].groups[0].ranks = {0, 2, 1};
  expect_error<CollectiveMismatch>(plans,
                                   {"rank 0 has group tp[0,1,2], but the plan of rank 1", "tp[0,2,1]"});
}

TEST(CheckGroups, APlanDeclaresAGroupOnce) {
  std::vector<Plan> plans = gather_plans();
  plans[1].groups.push_back(plans[1].groups[0]);
  expect_error<CheckFailure>(plans, {"rank 1: declares group tp[0,1,2] twice"});
}

TEST(CheckGroups, AGroupHoldsARankOnce) {
  const std::vector<Plan> plans = write_plans(1, [](Rank, PlanWriter& plan) { plan.group("tp", {0, 0}); });
  expect_error<CheckFailure>(plans, {"group tp[0,0] holds rank 0 twice"});
}

// ---- collectives ----

// One in-place collective of 6 elements on 3 ranks.
std::vector<Plan> reduce_plans(std::int64_t numel = 6) {
  return write_plans(3, [&](Rank, PlanWriter& plan) {
    const GroupId group = plan.group("dp", {0, 1, 2});
    const BufferId x = plan.inout("x", numel);
    plan.add(0, AllReduce{group, ReduceOp::sum, flat_view(x, 0, 6), flat_view(x, 0, 6)}, {}, "sum");
  });
}

TEST(CheckMatching, ReductionsAgree) {
  expect_clean(reduce_plans());
  std::vector<Plan> plans = reduce_plans();
  collective_at<AllReduce>(plans[1], 0).op = ReduceOp::max;
  expect_error<CollectiveMismatch>(plans,
                                   {"collective #0 on dp[0,1,2] differs: rank 1: all_reduce max of 6 f32",
                                    "(step 0 all_reduce \"sum\")", "ranks 0,2: all_reduce sum of 6 f32"});
}

TEST(CheckMatching, CountsAgree) {
  std::vector<Plan> plans = reduce_plans();
  collective_at<AllReduce>(plans[2], 0).in.shape = {5};
  collective_at<AllReduce>(plans[2], 0).out.shape = {5};
  expect_error<CollectiveMismatch>(plans,
                                   {"rank 2: all_reduce sum of 5 f32", "ranks 0,1: all_reduce sum of 6 f32"});
}

TEST(CheckMatching, DTypesAgree) {
  std::vector<Plan> plans = reduce_plans();
  plans[0].buffers[0].dtype = DType::i32;
  expect_error<CollectiveMismatch>(plans,
                                   {"rank 0: all_reduce sum of 6 i32", "ranks 1,2: all_reduce sum of 6 f32"});
}

TEST(CheckMatching, OperationsAgree) {
  std::vector<Plan> plans = reduce_plans();
  const View all = flat_view(0, 0, 6);
  step_at(plans[0], 0).work = Broadcast{0, 0, all, all};
  expect_error<CollectiveMismatch>(plans,
                                   {"rank 0: broadcast from index 0 of 6 f32", "ranks 1,2: all_reduce sum"});
}

TEST(CheckMatching, RootsAgree) {
  const auto plans = [](std::int32_t root_of_rank_2) {
    return write_plans(3, [&](Rank rank, PlanWriter& plan) {
      const GroupId group = plan.group("dp", {0, 1, 2});
      const View x = flat_view(plan.inout("x", 6), 0, 6);
      plan.add(0, Broadcast{group, rank == 2 ? root_of_rank_2 : 1, x, x});
    });
  };
  expect_clean(plans(1));
  expect_error<CollectiveMismatch>(
      plans(0), {"rank 2: broadcast from index 0 of 6 f32", "ranks 0,1: broadcast from index 1"});
}

TEST(CheckMatching, BlocksAgreeWhereBuffersDiffer) {
  // An all_gather of 4 from each of 3 ranks has an output of 12; of 2 one of 6.
  std::vector<Plan> plans = gather_plans();
  AllGather& gather = collective_at<AllGather>(plans[1], 1);
  gather.in.shape = {2};
  gather.out.shape = {6};
  expect_error<CollectiveMismatch>(plans, {"rank 1: all_gather of 2 f32", "ranks 0,2: all_gather of 4 f32"});
}

TEST(CheckMatching, SequencesHaveOneLength) {
  std::vector<Plan> plans = reduce_plans();
  plans[1].segments.push_back(plans[1].segments[0]);
  expect_error<CollectiveMismatch>(plans,
                                   {"rank 1 issues 2 collectives on dp[0,1,2], rank 0 only 1",
                                    "rank 1's step 1 all_reduce \"sum\" (all_reduce #1 on dp[0,1,2])"});
}

TEST(CheckMatching, RepeatsAgree) {
  const auto plans = [](std::int64_t iterations_of_rank_1) {
    return write_plans(2, [&](Rank rank, PlanWriter& plan) {
      const GroupId group = plan.group("dp", {0, 1});
      const View x = flat_view(plan.inout("x", 6), 0, 6);
      plan.begin_repeat(rank == 1 ? iterations_of_rank_1 : 3);
      plan.add(0, AllReduce{group, ReduceOp::sum, x, x});
      plan.end_repeat();
    });
  };
  expect_clean(plans(3));
  expect_error<CollectiveMismatch>(plans(4), {"collective #0 on dp[0,1] differs",
                                              "in Repeat 0 of 3 iterations", "in Repeat 0 of 4 iterations"});
}

TEST(CheckMatching, SequenceNumbersCountEveryIteration) {
  std::vector<Plan> plans = write_plans(2, [](Rank, PlanWriter& plan) {
    const GroupId group = plan.group("dp", {0, 1});
    const View x = flat_view(plan.inout("x", 6), 0, 6);
    plan.begin_repeat(10);
    plan.add(0, AllReduce{group, ReduceOp::sum, x, x});
    plan.add(0, AllReduce{group, ReduceOp::sum, x, x});
    plan.end_repeat();
    plan.add(0, AllReduce{group, ReduceOp::sum, x, x});
  });
  expect_clean(plans);
  collective_at<AllReduce>(plans[1], 2).op = ReduceOp::min;
  expect_error<CollectiveMismatch>(plans, {"collective #20 on dp[0,1] differs"});
}

TEST(CheckMatching, EverySendHasItsReceive) {
  expect_clean(exchange_plans());
  std::vector<Plan> plans = exchange_plans();
  collective_at<Exchange>(plans[0], 0).sends.pop_back();
  expect_error<CollectiveMismatch>(
      plans,
      {"exchange #0 on cp[0,1,2]: transfer 1 from rank 0 to rank 1: rank 0's step 0 exchange \"shift\" sends "
       "none, rank 1's step 0 exchange \"shift\" expects 1 f32"});
  plans = exchange_plans();
  collective_at<Exchange>(plans[2], 0).sends[0].peer = 1;
  expect_error<CollectiveMismatch>(plans,
                                   {"transfer 0 from rank 2 to rank 0", "sends 1 f32", "expects 2 f32"});
}

TEST(CheckMatching, TransfersOfAPairMatchInOrder) {
  std::vector<Plan> plans = exchange_plans();
  std::swap(collective_at<Exchange>(plans[1], 0).recvs[0], collective_at<Exchange>(plans[1], 0).recvs[1]);
  expect_error<CollectiveMismatch>(plans,
                                   {"transfer 0 from rank 0 to rank 1", "sends 2 f32", "expects 1 f32"});
}

TEST(CheckMatching, TransfersOfDifferentPairsHaveNoOrder) {
  std::vector<Plan> plans = write_plans(3, [](Rank rank, PlanWriter& plan) {
    const GroupId group = plan.group("cp", {0, 1, 2});
    const BufferId x = plan.input("x", 2), y = plan.output("y", 2);
    const std::int32_t next = (rank + 1) % 3, previous = (rank + 2) % 3;
    plan.add(0, Exchange{group,
                         {{next, flat_view(x, 0, 1)}, {previous, flat_view(x, 1, 1)}},
                         {{next, flat_view(y, 0, 1)}, {previous, flat_view(y, 1, 1)}},
                         {}});
  });
  fill_counts(plans, 0);
  expect_clean(plans);
}

TEST(CheckMatching, TransfersAgreeInType) {
  std::vector<Plan> plans = exchange_plans();
  plans[1].buffers[1].dtype = DType::i32;  // y
  expect_error<CollectiveMismatch>(plans,
                                   {"transfer 0 from rank 0 to rank 1", "sends 2 f32", "expects 2 i32"});
}

TEST(CheckMatching, TheCountsDigestIsOfTheRealMatrix) {
  std::vector<Plan> plans = exchange_plans();
  const Digest right = collective_at<Exchange>(plans[1], 0).counts;
  EXPECT_EQ(right, counts_digest({{0, 1, 3}, {1, 2, 3}, {2, 0, 3}}));
  collective_at<Exchange>(plans[1], 0).counts.low += 1;
  expect_error<CollectiveMismatch>(
      plans, {"rank 1's step 0 exchange \"shift\" (exchange #0 on cp[0,1,2]) declares the counts digest",
              to_string(right)});
}

TEST(CheckMatching, AMemberWithoutTransfersTakesPart) {
  const auto plans = [](bool third_takes_part) {
    std::vector<Plan> made = write_plans(3, [&](Rank rank, PlanWriter& plan) {
      const GroupId group = plan.group("cp", {0, 1, 2});
      Exchange exchange{group, {}, {}, counts_digest({{0, 1, 4}})};
      if (rank == 0) exchange.sends.push_back({1, flat_view(plan.input("x", 4), 0, 4)});
      if (rank == 1) exchange.recvs.push_back({0, flat_view(plan.output("y", 4), 0, 4)});
      if (rank < 2 || third_takes_part) plan.add(0, exchange);
    });
    return made;
  };
  expect_clean(plans(true));
  expect_error<CollectiveMismatch>(plans(false), {"rank 0 issues 1 collectives on cp[0,1,2], rank 2 only 0"});
}

}  // namespace
}  // namespace cp::testing
