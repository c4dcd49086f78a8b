// Redistributions between random layouts: planned, checked, run with data, and within their bounds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/plan.h"
#include "shared/redistribute/candidates.h"
#include "shared/redistribute/lower.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/property/redistribute_cases.h"
#include "tests/support/any_case.h"
#include "tests/support/layout_generators.h"
#include "tests/support/shard_data.h"
#include "traces/plan_proto.h"

namespace cp::testing {
namespace {

std::int64_t largest_shard_bytes(const RedistributeCase& request) {
  const DType travel = request.options.travel_dtype.value_or(request.target.dtype);
  std::int64_t numel = 0, width = size_bytes(travel);
  for (const Layout* layout : {&request.source, &request.target}) {
    width = std::max(width, size_bytes(layout->dtype));
    for (const Rank rank : layout->mesh.ranks())
      numel = std::max(numel, static_cast<std::int64_t>(element_numbers(*layout, rank).size()));
  }
  return numel * width;
}

std::int64_t most_temporary_bytes(const Redistribution& planned) {
  std::int64_t most = 0;
  for (const RedistributionStep& step : planned.steps) most = std::max(most, step.temporary_bytes_max);
  return most;
}

RC_GTEST_PROP(RedistributeProperty, RunIsRightAndWithinTheBound, ()) {
  const RedistributeCase request = *any_case({.tight = false});
  const Redistribution planned = plan_of(request);
  const std::vector<Plan> plans = lower_all(planned);
  const double limit =
      request.options.max_memory_factor * 2 * static_cast<double>(largest_shard_bytes(request));
  for (const Plan& plan : plans) {
    RC_ASSERT(static_cast<double>(plan.arena_bytes) <= limit);
    RC_ASSERT(peak_bytes(plan) <= planned.bound_bytes);
  }
  const PlansMemory memory = memory_of(plans);
  RC_ASSERT(memory.peak_bytes == planned.peak_bytes);
  RC_ASSERT(memory.arena_bytes == most_temporary_bytes(planned));
  // Throws for plans that the checker refuses, for other bytes than the planner counted, and for wrong data.
  const sim::RedistributeRun run = sim::run_redistribution(planned, plans);
  RC_ASSERT(run.peak_bytes == memory.peak_bytes);
}

// A factor below 1 is kept too, or refused with the smallest factor that works.
RC_GTEST_PROP(RedistributeProperty, TightMemoryIsKeptOrRefusedWithTheFactorThatWorks, ()) {
  RedistributeCase request = *any_case();
  request.options.max_memory_factor =
      pick("request.options.max_memory_factor", rc::gen::element(0.05, 0.25, 0.5, 0.75));
  try {
    const Redistribution planned = plan_of(request);
    const double limit =
        request.options.max_memory_factor * 2 * static_cast<double>(largest_shard_bytes(request));
    for (const Plan& plan : lower_all(planned)) RC_ASSERT(static_cast<double>(plan.arena_bytes) <= limit);
    sim::run_redistribution(planned);
    return;
  } catch (const Infeasible& error) {
    RC_LOG() << error.what() << "\n";
    request.options.max_memory_factor = named_factor(error);
  }
  sim::run_redistribution(plan_of(request));
  request.options.max_memory_factor -= 0.002;  // the message rounds up to thousandths
  if (request.options.max_memory_factor > 0) RC_ASSERT_THROWS_AS(plan_of(request), Infeasible);
}

RC_GTEST_PROP(RedistributeProperty, ParetoSetTradesTimeForMemory, ()) {
  RedistributeCase request = *any_case({.tight = false, .max_ranks = 8});
  request.options.objective = Objective::time;
  const std::vector<Redistribution> set =
      pareto_redistributions(request.source, request.target, request.options);
  RC_ASSERT(!set.empty());
  RC_ASSERT(lower_all(set.front()) == lower_all(plan_of(request)));
  RC_ASSERT(set.front().time_us == plan_of(request).time_us);
  for (std::size_t i = 1; i < set.size(); ++i) {
    RC_ASSERT(set[i].peak_bytes < set[i - 1].peak_bytes);
    RC_ASSERT(set[i].time_us >= set[i - 1].time_us - rounding_us(set[i], set[i - 1]));
    const std::vector<Plan> plans = lower_all(set[i]);
    RC_ASSERT(memory_of(plans).peak_bytes == set[i].peak_bytes);
    sim::run_redistribution(set[i], plans);
  }
}

// Some chain of candidate moves to the target, good or bad; nothing where it does not get there.
std::optional<std::vector<Move>> random_chain(const RedistributeCase& request) {
  detail::StateSpace space(request.source, request.target,
                           request.options.travel_dtype.value_or(request.target.dtype));
  std::vector<Move> moves;
  detail::State at = space.source();
  for (int left = *any_int(1, 4); !space.equivalent(at, space.target()); --left) {
    std::vector<detail::StateMove> all, candidates;
    const bool towards_target = pick("towards_target", rc::gen::element(false, true));
    detail::list_candidates(space, at,
                            towards_target ? detail::Breadth::towards_target : detail::Breadth::all, all);
    const auto kind = static_cast<MoveKind>(*any_int(0, static_cast<int>(MoveKind::to_partial)));
    for (const detail::StateMove& move : all) {
      if (left <= 1 ? move.to == space.target() : move.kind == kind) candidates.push_back(move);
    }
    if (candidates.empty() && left <= 1) return std::nullopt;
    if (candidates.empty()) continue;
    const int chosen = *any_int(0, static_cast<int>(candidates.size()) - 1);
    const detail::StateMove& move = candidates[static_cast<std::size_t>(chosen)];
    moves.push_back({move.kind, space.mesh_axes(move.from.side, move.axes), space.layout_of(move.from),
                     space.layout_of(move.to)});
    at = move.to;
  }
  return moves;
}

// Not the cheapest chains alone need just what they declare.
RC_GTEST_PROP(RedistributeProperty, AnyChainIsRightAndNeedsWhatItDeclares, ()) {
  const RedistributeCase request = *any_case({.tight = false, .max_ranks = 8});
  const std::optional<std::vector<Move>> moves = random_chain(request);
  RC_PRE(moves.has_value());
  const Redistribution chain = follow_moves(request.source, request.target, *moves, request.options);
  const std::vector<Plan> plans = lower_all(chain);
  const PlansMemory memory = memory_of(plans);
  RC_ASSERT(memory.peak_bytes == chain.peak_bytes);
  RC_ASSERT(memory.arena_bytes == most_temporary_bytes(chain));
  sim::run_redistribution(chain, plans);
  const double limit =
      request.options.max_memory_factor * 2 * static_cast<double>(largest_shard_bytes(request));
  if (static_cast<double>(memory.arena_bytes) > limit) return;
  // Nothing that keeps the bound is better than the plan says is possible, nor than a plan that says it is
  // the best.
  const bool by_time = request.options.objective == Objective::time;
  const double cost = by_time ? chain.time_us : static_cast<double>(chain.wire_bytes_received_max);
  const Redistribution planned = plan_of(request);
  RC_ASSERT(planned.least_possible <= cost + rounding_us(chain, planned));
}

RC_GTEST_PROP(RedistributeProperty, PlansComeBackFromTextAndBytes, ()) {
  const Redistribution planned = plan_of(*any_case({.tight = false}));
  for (const Plan& plan : lower_all(planned)) {
    RC_ASSERT(parse_plan(to_text(plan)) == plan);
    RC_ASSERT(from_proto(to_proto(plan)) == plan);
    RC_ASSERT(parse_plan_bytes(serialize_plan(plan)) == plan);
    RC_ASSERT(digest(parse_plan(to_text(plan))) == digest(plan));
  }
}

}  // namespace
}  // namespace cp::testing
