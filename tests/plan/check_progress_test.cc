// Cycles of waits: for each kind a set of plans that has none, and one that has.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace cp::testing
