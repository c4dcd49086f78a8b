#include "sim/planner/search/bound.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/layout_space.h"
#include "tests/planner/questions.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

// No layout is faster on the timeline than its bound, and no bound of a layout is below its family's.
void expect_bounded(const PlanQuestion& question, const ParallelLayout& family,
                    const ParallelLayout& layout) {
  const StepBound bound(question);
  Evaluator evaluator(question);
  const double step_ns = evaluator.evaluate(layout).step_us * 1e3;
  RC_LOG() << bound.ns(layout) / step_ns << "\n";
  RC_ASSERT(bound.ns(layout) <= step_ns);
  if (question.workload.phase == Phase::training) {
    AttentionTimer timer(question);
    const double sharper = bound.ns(layout, timer.of(layout));
    RC_LOG() << " sharper " << sharper / step_ns << "\n";
    RC_ASSERT(sharper <= step_ns);
  }
  FamilyBound of_family(bound);
  of_family.ns(family);
  RC_ASSERT(of_family.ns(layout) == bound.ns(layout));
  RC_ASSERT(bound.family_ns(family) <= bound.ns(layout) * (1 + 1e-12));
}

void pick_and_check(const PlanQuestion& question) {
  const LayoutSpace space(question);
  const ParallelLayout family = pick("family", rc::gen::elementOf(space.families()));
  const ParallelLayout layout = pick("layout", rc::gen::elementOf(space.members(family)));
  RC_PRE(!refuse(question.model, question.workload, layout));
  RC_LOG() << to_string(layout);
  expect_bounded(question, family, layout);
}

RC_GTEST_PROP(StepBound, IsBelowTheTimeline, ()) {
  PlanQuestion question = testing::small_question(16, pick("seq_len", rc::gen::element(4096, 5001, 65536)));
  if (pick("whether question.model.window", rc::gen::arbitrary<bool>())) question.model.window = 1000;
  if (pick("whether question.model.experts", rc::gen::arbitrary<bool>()))
    question.model.experts = Experts{4, 2, 512};
  pick_and_check(question);
}

RC_GTEST_PROP(StepBound, IsBelowTheTimelineOfWholeModels, ()) {
  const auto [model, nodes] =
      pick("model, nodes", rc::gen::element(std::pair{"llama-3.1-8b", 2}, std::pair{"llama-3.1-70b", 8},
                                            std::pair{"mixtral-8x7b", 4}, std::pair{"qwen2.5-7b", 1}));
  PlanQuestion question =
      testing::training_question(model, nodes, pick("seq_len", rc::gen::element(8192, 131072)), 64);
  question.workload.phase =
      pick("question.workload.phase", rc::gen::element(Phase::training, Phase::training, Phase::prefill));
  pick_and_check(question);
}

// What ends early takes longer than the limit, and what does not is the same as without one.
RC_GTEST_PROP(Evaluator, EndsEarlyOnlyBeyondTheLimit, ()) {
  PlanQuestion question = testing::small_question(16);
  question.model.layers = pick("question.model.layers", rc::gen::inRange(4, 12));
  const LayoutSpace space(question);
  const ParallelLayout family = pick("family", rc::gen::elementOf(space.families()));
  const ParallelLayout layout = pick("layout", rc::gen::elementOf(space.members(family)));
  RC_PRE(layout.pp > 1 && !refuse(question.model, question.workload, layout));
  RC_LOG() << to_string(layout);
  Evaluator evaluator(question);
  const double step_us = evaluator.evaluate(layout).step_us;
  const double share = pick("share", rc::gen::element(0.1, 0.5, 0.9, 0.999, 1.0, 1.1));
  const auto limited = evaluator.evaluate(layout, share * step_us * 1e3);
  RC_CLASSIFY(!limited, "ends early");
  RC_ASSERT(limited || share < 1);
  if (limited) RC_ASSERT(limited->step_us == step_us);
}

}  // namespace
}  // namespace cp::sim
