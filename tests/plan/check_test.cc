// For each rule a set of plans that keeps it, and one that breaks this rule alone.
#include "shared/plan/check.h"

#include <algorithm>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/plan/plan_writer.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

// The exact type of the error, and words of its message.
template <class Expected>
void expect_error(const std::vector<Plan>& plans, const std::vector<std::string>& words,
                  const CheckLimits& limits = {}) {
  try {
    check(plans, limits);
  } catch (const Error& error) {
    EXPECT_NE(dynamic_cast<const Expected*>(&error), nullptr) << name(error.kind()) << ": " << error.what();
    for (const std::string& each : words) EXPECT_THAT(error.what(), HasSubstr(each));
    return;
  }
  ADD_FAILURE() << "check() found nothing; expected: " << join(words, " ... ");
}

void expect_clean(const std::vector<Plan>& plans, const CheckLimits& limits = {}) {
  EXPECT_NO_THROW(check(plans, limits));
}

using Writer = std::function<void(Rank, PlanWriter&)>;

std::vector<Plan> write_plans(Rank ranks, const Writer& write,
                              const std::vector<std::string>& streams = {"main"}) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < ranks; ++rank) {
    PlanWriter plan(rank, streams);
    write(rank, plan);
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

// x -> copy -> t -> all_gather -> y, on 3 ranks.
std::vector<Plan> gather_plans() {
  return write_plans(3, [](Rank, PlanWriter& plan) {
    const GroupId group = plan.group("tp", {0, 1, 2});
    const BufferId x = plan.input("x", 4), t = plan.temporary("t", 4), y = plan.output("y", 12);
    plan.add(0, Copy{flat_view(x, 0, 4), flat_view(t, 0, 4)}, {}, "pack");
    plan.add(0, AllGather{group, flat_view(t, 0, 4), flat_view(y, 0, 12)}, {}, "gather");
  });
}

// ---- structure ----

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
  expect_error<CheckFailure>(plans, {"two plans for rank 1"});
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
  expect_error<CheckFailure>(plans, {"rank 1: is no member of group dp[0,2]"});
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

// ---- memory ----

TEST(CheckMemory, TemporariesLieInTheArena) {
  std::vector<Plan> plans = gather_plans();
  plans[2].arena_bytes = 15;
  expect_error<CheckFailure>(plans, {"rank 2: t at arena bytes [0, 16) leaves the arena of 15 bytes"});
  plans = gather_plans();
  plans[2].buffers[1].offset_bytes = 4;
  expect_error<CheckFailure>(plans, {"rank 2: t at arena bytes [4, 20) leaves the arena of 16 bytes"});
  plans[2].buffers[1].offset_bytes = -4;
  expect_error<CheckFailure>(plans, {"rank 2: t at arena bytes [-4, 12) leaves the arena of 16 bytes"});
}

TEST(CheckMemory, TemporariesAreAligned) {
  std::vector<Plan> plans = gather_plans();
  plans[2].buffers[1].offset_bytes = 2;
  plans[2].arena_bytes = 18;
  expect_error<CheckFailure>(
      plans, {"rank 2: t at arena bytes [2, 18) is not aligned to 4 bytes", "next place is 4"});
}

TEST(CheckMemory, UsesLieWithinTheDeclaredOnes) {
  std::vector<Plan> plans = gather_plans();
  plans[0].buffers[1].last_use = 0;
  expect_error<CheckFailure>(
      plans, {"rank 0: step 1 all_gather \"gather\" uses t, whose declared uses are steps 0 to 0"});
}

// x -> a -> b -> c -> y: a and c may share bytes, a and b may not.
std::vector<Plan> chain_plan(std::int64_t b_bytes, std::int64_t c_bytes, std::int64_t arena_bytes) {
  std::vector<Plan> plans = write_plans(1, [](Rank, PlanWriter& plan) {
    const BufferId x = plan.input("x", 4), a = plan.temporary("a", 4), b = plan.temporary("b", 4);
    const BufferId c = plan.temporary("c", 4), y = plan.output("y", 4);
    const std::vector<BufferId> chain = {x, a, b, c, y};
    for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
      plan.add(0, Copy{flat_view(chain[i], 0, 4), flat_view(chain[i + 1], 0, 4)});
    }
  });
  plans[0].buffers[2].offset_bytes = b_bytes;
  plans[0].buffers[3].offset_bytes = c_bytes;
  plans[0].arena_bytes = arena_bytes;
  return plans;
}

TEST(CheckMemory, BuffersShareBytesOnlyOneAfterTheOther) {
  expect_clean(chain_plan(16, 0, 32));
  expect_error<CheckFailure>(chain_plan(12, 32, 48),
                             {"rank 0: a at arena bytes [0, 16) (steps 0 to 1)",
                              "b at arena bytes [12, 28) (steps 1 to 2)", "share bytes"});
  // c shares bytes with a, which is no longer in use, and with b, which is.
  expect_error<CheckFailure>(chain_plan(16, 8, 32),
                             {"rank 0: c at arena bytes [8, 24) (steps 2 to 3)",
                              "b at arena bytes [16, 32) (steps 1 to 2)", "share bytes"});
}

TEST(CheckMemory, LimitsHold) {
  // The arena has 16 bytes, x 16 and y 48.
  expect_clean(gather_plans(), {.peak_bytes = 80, .arena_bytes = 16});
  expect_error<CheckFailure>(gather_plans(), {"rank 0: the arena has 16 bytes, more than the limit of 15"},
                             {.peak_bytes = {}, .arena_bytes = 15});
  expect_error<CheckFailure>(gather_plans(), {"rank 0: ", "make 80 bytes, more than the limit of 79"},
                             {.peak_bytes = 79, .arena_bytes = {}});
}

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

// ---- matching ----

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

// Every rank sends 2 elements, then 1, to the next and receives them from the previous one.
std::vector<Plan> exchange_plans() {
  std::vector<Plan> plans = write_plans(3, [](Rank rank, PlanWriter& plan) {
    const GroupId group = plan.group("cp", {0, 1, 2});
    const BufferId x = plan.input("x", 3), y = plan.output("y", 3);
    const std::int32_t next = (rank + 1) % 3, previous = (rank + 2) % 3;
    plan.add(0,
             Exchange{group,
                      {{next, flat_view(x, 0, 2)}, {next, flat_view(x, 2, 1)}},
                      {{previous, flat_view(y, 0, 2)}, {previous, flat_view(y, 2, 1)}},
                      {}},
             {}, "shift");
  });
  fill_counts(plans, 0);
  return plans;
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

// ---- progress ----

// What each rank issues, as names of groups.
std::vector<Plan> issue_plans(const std::vector<Group>& groups, const std::vector<std::string>& issued,
                              std::int64_t iterations = 1) {
  return write_plans(static_cast<Rank>(issued.size()),
                     [&](Rank rank, PlanWriter& plan) {
                       std::map<char, GroupId> ids;
                       for (const Group& group : groups) {
                         if (std::count(group.ranks.begin(), group.ranks.end(), rank) == 0) continue;
                         ids[group.name[0]] = plan.group(group.name, group.ranks);
                       }
                       const auto add = [&](char name) {
                         // Nothing that the steps touch orders them.
                         const View x = flat_view(plan.inout(std::string("x_") + name, 2), 0, 2);
                         plan.add(ids.at(name), AllReduce{ids.at(name), ReduceOp::sum, x, x});
                       };
                       // "a(bc)": a once, then b and c in each iteration of a Repeat.
                       for (const char name : issued[static_cast<std::size_t>(rank)]) {
                         if (name == '(') {
                           plan.begin_repeat(iterations);
                         } else if (name == ')') {
                           plan.end_repeat();
                         } else {
                           add(name);
                         }
                       }
                     },
                     {"s0", "s1", "s2"});
}

TEST(CheckProgress, RanksIssueTheCollectivesOfTwoGroupsInOneOrder) {
  const std::vector<Group> groups = {{"a", {0, 1}}, {"b", {0, 1}}};
  expect_clean(issue_plans(groups, {"ab", "ab"}));
  expect_error<Deadlock>(issue_plans(groups, {"ab", "ba"}),
                         {"rank 0 waits in step 0 all_reduce (all_reduce #0 on a[0,1]) for rank 1",
                          "rank 1 waits in step 0 all_reduce (all_reduce #0 on b[0,1]) for rank 0"});
  expect_error<Deadlock>(issue_plans(groups, {"aabab", "aabba"}),
                         {"rank 0 waits in step 3 all_reduce (all_reduce #2 on a[0,1]) for rank 1",
                          "rank 1 waits in step 3 all_reduce (all_reduce #1 on b[0,1]) for rank 0"});
}

TEST(CheckProgress, AnEdgeBetweenStreamsWaitsToo) {
  // With any number of collectives in flight only the edges decide: these two wait for each other then as
  // well.
  std::vector<Plan> plans = issue_plans({{"a", {0, 1}}, {"b", {0, 1}}}, {"ab", "ba"});
  for (Plan& plan : plans) step_at(plan, 1).after = {{0, 0}};
  expect_error<Deadlock>(plans, {"a wait cycle"});
}

TEST(CheckProgress, ACycleMayPassThreeRanks) {
  const std::vector<Group> groups = {{"a", {0, 1}}, {"b", {1, 2}}, {"c", {2, 0}}};
  expect_clean(issue_plans(groups, {"ac", "ab", "bc"}));
  expect_error<Deadlock>(issue_plans(groups, {"ac", "ba", "cb"}),
                         {"rank 0 waits in step 0 all_reduce (all_reduce #0 on a[0,1]) for rank 1",
                          "rank 1 waits in step 0 all_reduce (all_reduce #0 on b[1,2]) for rank 2",
                          "rank 2 waits in step 0 all_reduce (all_reduce #0 on c[2,0]) for rank 0"});
}

TEST(CheckProgress, TheShortestCycleIsShown) {
  try {
    check(issue_plans({{"a", {0, 1, 2}}, {"b", {1, 2}}, {"c", {2, 0}}}, {"ac", "ba", "cab"}));
    ADD_FAILURE() << "check() found nothing";
  } catch (const Deadlock& error) {
    // Rank 2 waits for 0, and 0 waits for 2: rank 1, which waits for 2, is no part of it.
    EXPECT_THAT(error.what(),
                HasSubstr("rank 0 waits in step 0 all_reduce (all_reduce #0 on a[0,1,2]) for rank 2"));
    EXPECT_THAT(error.what(),
                HasSubstr("rank 2 waits in step 0 all_reduce (all_reduce #0 on c[2,0]) for rank 0"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("rank 1")));
  }
}

TEST(CheckProgress, RepeatsAreComparedAsFarAsRanksCanDriftApart) {
  const std::vector<Group> groups = {{"a", {0, 1}}, {"b", {0, 1}}};
  expect_clean(issue_plans(groups, {"(ab)", "(ab)"}, 5));
  expect_clean(issue_plans(groups, {"(a)(b)", "(a)(b)"}, 5));
  // One rank starts with b when the other has finished all of a.
  expect_error<Deadlock>(issue_plans(groups, {"(ab)", "(a)(b)"}, 5),
                         {"rank 0 waits in step 1 all_reduce (all_reduce #0 on b[0,1]) for rank 1",
                          "rank 1 waits in step 0 all_reduce (all_reduce #1 on a[0,1]) for rank 0"});
  // a2 before c0 on rank 2, c0 before b1 on rank 1, b1 before a2 on rank 0: with 2 iterations there is no a2.
  const std::vector<Group> three = {{"a", {0, 2}}, {"b", {0, 1}}, {"c", {1, 2}}};
  expect_clean(issue_plans(three, {"(ab)", "(bc)", "(a)(c)"}, 2));
  expect_error<Deadlock>(issue_plans(three, {"(ab)", "(bc)", "(a)(c)"}, 3), {"all_reduce #2 on a[0,2]"});
  expect_error<Deadlock>(issue_plans(three, {"(ab)", "(bc)", "(a)(c)"}, 1000000000),
                         {"all_reduce #2 on a[0,2]"});
}

// ---- order ----

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

// ---- contents ----

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
                             {"rank 0: step 1 copy \"use a\" (iteration 1) reads a[2, 4), where step 3 copy "
                              "\"make b\" (iteration 0) wrote b[0, 2) in the same bytes of the arena"});
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

}  // namespace
}  // namespace cp::testing
