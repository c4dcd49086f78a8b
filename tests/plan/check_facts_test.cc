// What the checker's errors say as data.
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "tests/plan/plan_writer.h"

namespace cp::testing {
namespace {

ErrorFacts facts_of_check(const std::vector<Plan>& plans) {
  try {
    check(plans);
  } catch (const Error& error) {
    return error.facts();
  }
  ADD_FAILURE() << "check() found nothing";
  return {};
}

// Two ranks that sum over groups a and b, on two streams; each begins with the group that is given for it.
std::vector<Plan> two_sums(const std::vector<std::string>& first_groups) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 2; ++rank) {
    PlanWriter plan(rank, {"s0", "s1"});
    const GroupId a = plan.group("a", {0, 1}), b = plan.group("b", {0, 1});
    const View x = flat_view(plan.inout("x", 2), 0, 2), y = flat_view(plan.inout("y", 2), 0, 2);
    const bool a_first = first_groups[static_cast<std::size_t>(rank)] == "a";
    if (a_first) plan.add(0, AllReduce{a, ReduceOp::sum, x, x});
    plan.add(1, AllReduce{b, ReduceOp::sum, y, y});
    if (!a_first) plan.add(0, AllReduce{a, ReduceOp::sum, x, x});
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

TEST(CheckFacts, ADeadlockNamesOneOfItsWaits) {
  EXPECT_NO_THROW(check(two_sums({"b", "b"})));
  const ErrorFacts facts = facts_of_check(two_sums({"a", "b"}));
  EXPECT_TRUE(facts.rank == 0 || facts.rank == 1) << facts.rank;
  EXPECT_EQ(facts.group, facts.rank == 0 ? "a[0,1]" : "b[0,1]");
  EXPECT_EQ(facts.operation, "all_reduce");
  EXPECT_EQ(facts.sequence, 0);
  EXPECT_EQ(facts.step, 0);
}

TEST(CheckFacts, AMismatchNamesTheCollective) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 2; ++rank) {
    PlanWriter plan(rank);
    const GroupId group = plan.group("tp", {0, 1});
    const std::int64_t count = 4 + rank;
    const View same = flat_view(plan.inout("same", 2), 0, 2);
    const View other = flat_view(plan.inout("other", count), 0, count);
    plan.add(0, AllReduce{group, ReduceOp::sum, same, same});
    plan.add(0, AllReduce{group, ReduceOp::sum, other, other});
    plans.push_back(std::move(plan).finish());
  }
  EXPECT_EQ(facts_of_check(plans), (ErrorFacts{.group = "tp[0,1]", .sequence = 1}));
}

TEST(CheckFacts, AWrongStepIsNamed) {
  PlanWriter plan(3);
  const View x = flat_view(plan.input("x", 4), 0, 4), y = flat_view(plan.output("y", 4), 0, 4);
  plan.add(0, Copy{x, y});
  plan.add(0, Copy{x, flat_view(y.buffer, 2, 4)});  // leaves y
  EXPECT_EQ(facts_of_check({std::move(plan).finish()}), (ErrorFacts{.rank = 3, .step = 1}));
}

}  // namespace
}  // namespace cp::testing
