// Any fault in any redistribution and any attention: never silent, never the wrong culprit.
#include <ostream>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/redistribute/lower.h"
#include "sim/proof/faults/fault_verdict.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"
#include "tests/support/any_case.h"
#include "tests/support/layout_generators.h"

namespace cp::sim {

void showValue(const InjectedFault& fault, std::ostream& out) { out << to_string(fault); }

}  // namespace cp::sim

namespace cp::testing {
namespace {

using sim::FaultKind;
using sim::FaultRunOptions;
using sim::FaultVerdict;
using sim::InjectedFault;

InjectedFault any_fault(std::span<const Plan> plans, std::int64_t more_collectives = 0) {
  InjectedFault fault;
  fault.kind = static_cast<FaultKind>(pick("kind", rc::gen::inRange(1, sim::kNumFaultKinds)));
  const auto any_plan = [&](const char* what) -> const Plan& {
    return plans[pick(what, rc::gen::inRange<std::size_t>(0, plans.size()))];
  };
  const Plan& plan = any_plan("rank");
  fault.rank = plan.self, fault.peer = any_plan("peer").self;
  fault.collective = pick(
      "collective", rc::gen::inRange<std::int64_t>(0, sim::num_collectives(plan) + more_collectives + 1));
  fault.amount = pick("amount", rc::gen::inRange<std::int64_t>(0, 200));
  return fault;
}

FaultRunOptions any_run() {
  FaultRunOptions options;
  options.schedule =
      pick("parallel", rc::gen::inRange(0, 4)) == 0 ? sim::Schedule::parallel : sim::Schedule::baton;
  options.seed = pick("order", rc::gen::arbitrary<std::uint64_t>());
  options.checksums = pick("each", rc::gen::arbitrary<bool>()) ? Checksums::each : Checksums::end;
  options.compare_digests = pick("digests", rc::gen::arbitrary<bool>());
  return options;
}

void assert_holds(const FaultVerdict& verdict, const InjectedFault& fault) {
  RC_CLASSIFY(verdict.kind == FaultVerdict::Kind::reported, "reported");
  RC_CLASSIFY(verdict.kind == FaultVerdict::Kind::no_fault, "no_fault");
  RC_LOG() << to_string(fault) << ": " << name(verdict.kind) << ", " << verdict.error_name() << ": "
           << verdict.message << "\n";
  RC_ASSERT(verdict.holds());
}

RC_GTEST_PROP(AnyFaults, OfRedistributionsAreToleratedOrBlamed, ()) {
  const auto drawn = [](const char* what) {
    return case_of_seed(pick(what, rc::gen::arbitrary<std::uint64_t>()), {.tight = false, .max_ranks = 6});
  };
  const RedistributeCase request = drawn("case");
  const Redistribution redistribution = plan_redistribution(request.source, request.target, request.options);
  const std::vector<Plan> plans = lower_all(redistribution);
  const RedistributeCase other_request = drawn("other case");
  std::vector<Plan> others =
      lower_all(plan_redistribution(other_request.source, other_request.target, other_request.options));
  std::erase_if(others, [&](const Plan& plan) {
    return std::ranges::any_of(plan.groups, [&](const Group& group) {
      return std::ranges::any_of(group.ranks, [&](Rank rank) { return rank > plans.back().self; });
    });
  });
  const InjectedFault fault = any_fault(plans);
  assert_holds(judge_redistribution(redistribution, plans, {{fault}}, any_run(), others), fault);
}

RC_GTEST_PROP(AnyFaults, OfAttentionAreToleratedOrBlamed, ()) {
  const AttentionProblem problem = pick("problem", any_problem());
  const int cp = pick("ranks", rc::gen::inRange(1, 6));
  const Strategy strategy = pick("strategy", any_strategy(problem, cp));
  const AttentionRequest request{problem, first_ranks(cp), strategy, true, {}};
  const std::vector<Plan> forward = attention_plans(request, AttentionPass::forward),
                          backward = attention_plans(request, AttentionPass::backward);
  AttentionRequest other = request;
  other.problem.causal = !problem.causal;
  const std::vector<Plan> others = attention_plans(other, AttentionPass::forward);
  const sim::AttentionTestData data(problem, 1);
  const InjectedFault fault = any_fault(forward, sim::num_collectives(backward.front()));
  assert_holds(judge_attention(data, request, forward, backward, {{fault}}, any_run(), others), fault);
}

}  // namespace
}  // namespace cp::testing
