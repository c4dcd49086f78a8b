#include "sim/proof/exhaustive/pair_check.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/plan/check.h"
#include "shared/redistribute/lower.h"
#include "sim/proof/exhaustive/audit.h"
#include "sim/proof/exhaustive/timed.h"

namespace cp::sim {

namespace {

std::optional<Redistribution> plan(const Layout& source, const Layout& target,
                                   const VerifyRedistributeOptions& options) {
  RedistributeOptions planning;
  planning.cost = options.planner_cost.value_or(options.cost);
  planning.max_memory_factor = options.max_memory_factor;
  try {
    return plan_redistribution(source, target, planning);
  } catch (const Infeasible&) {
    return std::nullopt;
  }
}

void compare_with_search(const std::optional<Redistribution>& redistribution, const ExhaustiveSearch& search,
                         const std::optional<ExhaustiveSearch::Chain>& cheapest, CheckedPair& pair) {
  const auto found = [&] {
    return str(search.to_string(*cheapest), ", ", static_cast<double>(cheapest->time_ps) / kPsPerUs, " us");
  };
  if (!cheapest) {
    pair.infeasible = !redistribution;
    if (redistribution)
      pair.findings.push_back({Fault::cheaper, "the search knows no chain in the memory bound"});
    return;
  }
  if (!redistribution) {
    pair.findings.push_back({Fault::costlier, str("infeasible, but the search found ", found())});
    return;
  }
  const Audit audit = sim::audit(*redistribution, search, *cheapest);
  if (!audit.misdeclared.empty()) pair.findings.push_back({Fault::misdeclared, audit.misdeclared});
  if (audit.excess_ps == 0) return;
  const double excess_us = static_cast<double>(std::abs(audit.excess_ps)) / kPsPerUs;
  if (audit.excess_ps > 0) {
    pair.findings.push_back(
        {Fault::costlier, str(excess_us, " us more than the search, which found ", found())});
  } else {
    pair.findings.push_back(
        {Fault::cheaper, str(excess_us, " us less than the search, which found ", found())});
  }
}

// What the plans need against what was promised and declared.
void check_memory(const std::vector<Plan>& plans, const Redistribution& redistribution, double bound_bytes,
                  CheckedPair& pair) {
  std::int64_t declared = 0, peak = 0;
  for (const RedistributionStep& step : redistribution.steps)
    declared = std::max(declared, step.temporary_bytes_max);
  const Plan* largest = nullptr;
  for (const Plan& plan : plans) {
    if (largest == nullptr || plan.arena_bytes > largest->arena_bytes) largest = &plan;
    peak = std::max(peak, peak_bytes(plan));
  }
  if (static_cast<double>(largest->arena_bytes) > bound_bytes) {
    pair.findings.push_back({Fault::over_bound, str("rank ", largest->self, " has ", largest->arena_bytes,
                                                    " bytes of temporaries, more than ", bound_bytes)});
  }
  if (largest->arena_bytes > declared) {
    pair.findings.push_back({Fault::misdeclared, str("rank ", largest->self, " has ", largest->arena_bytes,
                                                     " bytes of temporaries, declared are ", declared)});
  }
  if (peak != redistribution.peak_bytes) {
    pair.findings.push_back(
        {Fault::misdeclared, str("the peak is ", peak, " bytes, declared are ", redistribution.peak_bytes)});
  }
}

}  // namespace

CheckedPair check_pair(const ExhaustiveSearch& search, std::size_t source, std::size_t target,
                       const std::optional<ExhaustiveSearch::Chain>& cheapest,
                       const VerifyRedistributeOptions& options, VerifyRedistributeResult::Times& times) {
  CheckedPair pair;
  pair.source = source;
  pair.target = target;
  const Written& from = search.layouts()[source];
  const Written& to = search.layouts()[target];
  try {
    std::optional<Redistribution> redistribution;
    timed(times.plan, [&] { redistribution = plan(from.layout, to.layout, options); });
    timed(times.search, [&] { compare_with_search(redistribution, search, cheapest, pair); });
    if (!redistribution) return pair;
    std::vector<Plan> plans;
    timed(times.lower, [&] { plans = lower_all(*redistribution); });
    check_memory(plans, *redistribution, search.bound_bytes(source, target), pair);
    timed(times.check, [&] { check(plans); });
    pair.plans = std::move(plans);
    pair.regroups =
        std::any_of(redistribution->steps.begin(), redistribution->steps.end(),
                    [](const RedistributionStep& step) { return step.move.kind == MoveKind::to_partial; });
  } catch (const Error& error) {
    pair.findings.push_back({Fault::wrong, error.what()});
  }
  return pair;
}

}  // namespace cp::sim
