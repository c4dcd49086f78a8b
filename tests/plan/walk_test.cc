// A plan's steps in the order in which they are issued.
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/plan/plan.h"
#include "shared/plan/plan_walk.h"
#include "tests/support/any_case.h"

namespace cp::testing {
namespace {

struct Visit {
  StepId id;
  std::int64_t iteration;
  const Step* step;
  bool operator==(const Visit&) const = default;
};

std::vector<Visit> walked(const Plan& plan) {
  std::vector<Visit> visits;
  for (PlanWalk walk(plan); !walk.done(); walk.next())
    visits.push_back({walk.id(), walk.iteration(), &walk.step()});
  return visits;
}

TEST(PlanWalk, GoesThroughABodyInEachIteration) {
  Plan plan;
  plan.segments = {Step{}, Repeat{3, {Step{}, Step{}}}, Step{}};
  const auto& body = std::get<Repeat>(plan.segments[1]).steps;
  const Step *first = &std::get<Step>(plan.segments[0]), *last = &std::get<Step>(plan.segments[2]);
  EXPECT_EQ(walked(plan), (std::vector<Visit>{{0, 0, first},
                                              {1, 0, &body[0]},
                                              {2, 0, &body[1]},
                                              {1, 1, &body[0]},
                                              {2, 1, &body[1]},
                                              {1, 2, &body[0]},
                                              {2, 2, &body[1]},
                                              {3, 0, last}}));
}

TEST(PlanWalk, SkipsWhatIssuesNothing) {
  EXPECT_TRUE(PlanWalk(Plan{}).done());
  Plan plan;
  plan.segments = {Repeat{3, {}}, Repeat{0, {Step{}, Step{}}}, Step{}, Repeat{0, {Step{}}}};
  EXPECT_EQ(walked(plan), (std::vector<Visit>{{2, 0, &std::get<Step>(plan.segments[2])}}));
}

// Of any segments: what is walked is each segment's steps, all of them in each iteration, under the ids that
// steps_of() gives.
RC_GTEST_PROP(PlanWalk, IsTheUnrolledPlan, ()) {
  Plan plan;
  const int segments = pick("segments", rc::gen::inRange(0, 6));
  for (int i = 0; i < segments; ++i) {
    const auto body =
        static_cast<std::size_t>(pick("steps of a body, 0: a step alone", rc::gen::inRange(0, 4)));
    if (body == 0) {
      plan.segments.emplace_back(Step{});
    } else {
      // A body of one step less: bodies without steps among them.
      plan.segments.emplace_back(
          Repeat{pick("count", rc::gen::inRange<std::int64_t>(0, 4)), std::vector<Step>(body - 1)});
    }
  }
  std::vector<Visit> expected;
  const std::vector<StepRef> steps = steps_of(plan);
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    const Repeat* repeat = std::get_if<Repeat>(&plan.segments[segment]);
    for (std::int64_t iteration = 0; iteration < (repeat == nullptr ? 1 : repeat->count); ++iteration) {
      for (const StepRef& ref : steps) {
        if (ref.segment == static_cast<std::int32_t>(segment))
          expected.push_back({ref.id, iteration, ref.step});
      }
    }
  }
  RC_ASSERT(walked(plan) == expected);
}

}  // namespace
}  // namespace cp::testing
