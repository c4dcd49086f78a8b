// The hand-written plans through the checker, the text form and the simulated fabric. Gloo and the NCCL
// calls: tests/runtime.
#include "tests/support/hand_plans.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "sim/fabric/fabric.h"
#include "tests/support/fabric_run.h"

namespace cp {
namespace {

using testing::BufferValues;
using testing::FabricRun;
using testing::PlanCase;

void expect_correct(const PlanCase& plan_case, const FabricRun& run) {
  for (std::size_t rank = 0; rank < run.outputs.size(); ++rank) {
    EXPECT_EQ(compare_outputs(plan_case, static_cast<Rank>(rank), run.outputs[rank]), "") << plan_case.name;
  }
  // Compared with itself: what each rank issued against what it observed.
  EXPECT_EQ(first_difference(run.traces, run.traces), std::nullopt) << plan_case.name;
}

class HandPlans : public ::testing::TestWithParam<int> {};

TEST_P(HandPlans, PassTheChecker) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    EXPECT_NO_THROW(check(plan_case.plans)) << plan_case.name;
  }
}

// Without any one of its edges, a plan races.
TEST_P(HandPlans, NeedEveryEdge) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    std::vector<Plan> plans = plan_case.plans;
    const auto try_without_each = [&](Step& step) {
      const std::vector<Edge> edges = step.after;
      for (std::size_t i = 0; i < edges.size(); ++i) {
        step.after.erase(step.after.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_THROW(check(plans), CheckFailure)
            << plan_case.name << ": \"" << step.label << "\" without its edge to step " << edges[i].step;
        step.after = edges;
      }
    };
    for (Segment& segment : plans.front().segments) {
      if (Step* step = std::get_if<Step>(&segment)) try_without_each(*step);
      if (Repeat* repeat = std::get_if<Repeat>(&segment)) {
        for (Step& step : repeat->steps) try_without_each(step);
      }
    }
  }
}

TEST_P(HandPlans, AreEqualWhenBuiltTwice) {
  const auto first = testing::hand_plans(GetParam()), second = testing::hand_plans(GetParam());
  for (std::size_t i = 0; i < first.size(); ++i) {
    for (std::size_t rank = 0; rank < first[i].plans.size(); ++rank) {
      EXPECT_EQ(first[i].plans[rank], second[i].plans[rank]) << first[i].name;
      EXPECT_EQ(digest(first[i].plans[rank]), digest(second[i].plans[rank])) << first[i].name;
    }
  }
}

TEST_P(HandPlans, SurviveTheTextForm) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    for (const Plan& plan : plan_case.plans) EXPECT_EQ(parse_plan(to_text(plan)), plan) << plan_case.name;
  }
}

TEST_P(HandPlans, RunInParallelOnTheFabric) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    expect_correct(plan_case, run_on_fabric(plan_case, {.schedule = sim::Schedule::parallel}));
  }
}

// The order in which ranks and streams run changes no bit of any result, and nothing in the traces.
TEST_P(HandPlans, RunInManyOrdersWithEqualBits) {
  for (const PlanCase& plan_case : testing::hand_plans(GetParam())) {
    const FabricRun parallel = run_on_fabric(plan_case, {.schedule = sim::Schedule::parallel});
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const FabricRun baton = run_on_fabric(plan_case, {.schedule = sim::Schedule::baton, .seed = seed});
      expect_correct(plan_case, baton);
      EXPECT_EQ(baton.outputs, parallel.outputs) << plan_case.name << ", seed " << seed;
      EXPECT_EQ(first_difference(baton.traces, parallel.traces), std::nullopt)
          << plan_case.name << ", seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, HandPlans, ::testing::Values(1, 2, 4), ::testing::PrintToStringParamName());

// Labels of the steps that the step with this label waits for on other streams.
std::set<std::string> awaited(const Plan& plan, const std::string& label) {
  const std::vector<StepRef> steps = steps_of(plan);
  std::set<std::string> labels;
  for (const StepRef& ref : steps) {
    if (ref.step->label != label) continue;
    for (const Edge& edge : ref.step->after)
      labels.insert(steps[static_cast<std::size_t>(edge.step)].step->label);
  }
  return labels;
}

TEST(HandPlans, TheRingComputesWhileItsTransfersRun) {
  const Plan plan = testing::ring_backward(4, DType::f32).plans[1];
  using Labels = std::set<std::string>;
  EXPECT_EQ(awaited(plan, "attention of step 0"), Labels{});
  EXPECT_EQ(awaited(plan, "attention of step 1"), Labels{"k, v of step 1"});
  // Nothing more: the sums of step 1 have waited for a transfer that came after k, v of step 2.
  EXPECT_EQ(awaited(plan, "attention of step 2"), Labels{});
  EXPECT_EQ(awaited(plan, "k, v of step 1"), Labels{});
  EXPECT_EQ(awaited(plan, "k, v of step 3"), Labels{"attention of step 1"});  // which frees the slot
  EXPECT_EQ(awaited(plan, "dk, dv of step 0"),
            Labels{"attention of step 0"});  // beside the attention of step 1
  EXPECT_EQ(awaited(plan, "dk, dv of step 2"), Labels{"dv"});
}

TEST(HandPlans, TheNextLayerIsGatheredWhileThisOneComputes) {
  const Plan plan = testing::prefetched_blocks(2, 6).plans[0];
  const Repeat& repeat = std::get<Repeat>(plan.segments[1]);
  const auto step = [&](std::string_view label) {
    return *std::find_if(repeat.steps.begin(), repeat.steps.end(),
                         [&](const Step& s) { return s.label == label; });
  };
  // Three slots: the gather of layer l waits for the product of layer l-3, in the block before this one or
  // the one before that.
  const StepId first = 1;  // after the gather of layer 0
  EXPECT_EQ(step("layer +1").after, (std::vector<Edge>{{first + 1, 1}}));
  EXPECT_EQ(step("layer +2").after, (std::vector<Edge>{{first + 5, 1}}));
}

TEST(HandPlans, BothFormsOfTheUnevenReduceGiveEqualBits) {
  for (const int ranks : {2, 4}) {
    const auto with = [&](testing::UnevenReduce form) {
      return run_on_fabric(testing::uneven_reduce(ranks, 13, form, DType::f32), {}).outputs;
    };
    EXPECT_EQ(with(testing::UnevenReduce::reduce_scatter), with(testing::UnevenReduce::exchange));
  }
}

}  // namespace
}  // namespace cp
