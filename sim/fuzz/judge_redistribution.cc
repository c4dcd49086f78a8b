#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/check.h"
#include "shared/plan/plan_digests.h"
#include "shared/plan/plan_text.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/fuzz/conditions.h"
#include "sim/fuzz/judge.h"
#include "sim/fuzz/laws.h"
#include "sim/proof/exhaustive/index_oracle.h"
#include "sim/proof/faults/fault_verdict.h"
#include "sim/proof/run/redistribute_run.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::sim {
namespace {

// A case runs with data up to this size; larger ones are planned and checked, but not run. Ranks are counted
// up to the last one's number, since a run has a thread for each. Chosen, so that a case stays within
// milliseconds.
constexpr Rank kMostRunRanks = 80;
constexpr std::int64_t kMostRunElements = 1 << 17;  // all ranks together
// Up to this many ranks, the plans of all are lowered and checked; of more ranks, the plans of a few are
// lowered. Chosen for the same reason.
constexpr int kMostCheckedRanks = 128;
constexpr int kLoweredOfMany = 3;
// Of the indices that all ranks of a mesh may have along a dimension, since they are listed one by one.
constexpr std::int64_t kMostListed = 8192;
// check() takes time and memory in proportion to the stretches of memory that views consist of, all ranks
// together. Chosen, like the limits above.
constexpr double kMostStretches = 1e5;

// Whether the rules allow the request, told apart from how the planner does: a source that is partial on an
// axis may not become partial there by another reduction. (What a layout may be is make_layout's business,
// what a gradient may be plan_gradient's.)
void require_legal(const RedistributeRequest& request) {
  if (request.source.mesh != request.target.mesh) return;
  for (std::size_t axis = 0; axis < request.source.placements.size(); ++axis) {
    const auto* held = std::get_if<Partial>(&request.source.placements[axis]);
    const auto* wanted = std::get_if<Partial>(&request.target.placements[axis]);
    if (held == nullptr || wanted == nullptr || held->op == wanted->op) continue;
    throw InvalidInput(str("--from ", placements_to_string(request.source), " and --to ",
                           placements_to_string(request.target), " are partial by two reductions on axis ",
                           request.source.mesh.axes()[axis].name, "; give both the same"));
  }
}

// A mesh may have so many axes larger than one, a limit that the planner states: more are refused in words.
bool has_too_many_axes(const Layout& layout) {
  constexpr std::ptrdiff_t kMostAxes = 12;
  return std::ranges::count_if(layout.mesh.axes(), [](const MeshAxis& axis) { return axis.size > 1; }) >
         kMostAxes;
}

void require_refused(const RedistributeRequest& request, const Trial& trial) {
  try {
    plan_request(request);
  } catch (const InvalidInput&) {
    return;
  }
  throw trial.failure("limit", str(to_string(request.source),
                                   " has more axes than a plan can be made for, and there is one"));
}

// A memory factor with which there is always a plan: straight to the target; with a cast shard beside it;
// with the value that a new partial one is made of.
double sufficient_factor(const RedistributeRequest& request) {
  const bool casts = request.options.travel_dtype.value_or(request.target.dtype) != request.source.dtype ||
                     request.source.dtype != request.target.dtype;
  bool makes_partial = request.gradient.has_value() ||
                       (is_partial(request.target) && request.source.mesh != request.target.mesh);
  if (request.source.mesh == request.target.mesh) {
    for (std::size_t axis = 0; axis < request.source.placements.size(); ++axis) {
      makes_partial = makes_partial || (std::holds_alternative<Partial>(request.target.placements[axis]) &&
                                        !std::holds_alternative<Partial>(request.source.placements[axis]));
    }
  }
  return 1 + (casts ? 1 : 0) + (makes_partial ? 1 : 0);
}

// Refused for memory: rightly, and the factor that is named works.
Gradient within_named_factor(RedistributeRequest& request, const MemoryBoundTooTight& error,
                             const Trial& trial) {
  trial.require(request.options.max_memory_factor < sufficient_factor(request), "memory refusal",
                "there is a plan for every request with max_memory_factor=", sufficient_factor(request), ": ",
                error.what());
  request.options.max_memory_factor = error.factor_that_works();
  return trial.property("memory refusal", [&] { return plan_request(request); });
}

void check_index_sets(const Layout& layout, const Trial& trial) {
  for (std::size_t dim = 0; dim < layout.shape.size(); ++dim) {
    if (layout.shape[dim] * layout.mesh.size() > kMostListed) continue;
    for (const Rank rank : layout.mesh.ranks()) {
      const Indices expected = indices_by_elements(layout, static_cast<int>(dim), rank);
      Indices found;
      for (const Run& run : indices(layout, static_cast<int>(dim), rank)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          for (std::int64_t j = 0; j < run.run; ++j) found.push_back(run.begin + i * run.stride + j);
        }
      }
      trial.require(found == expected, "index sets", "rank ", rank, " of ", to_string(layout),
                    " holds of dimension ", dim, " the indices ", join(found), ", where the splits say ",
                    join(expected));
    }
  }
}

// Stretches of memory that are next to each other in the whole tensor, of all ranks together.
double stretches(const Layout& layout) {
  double total = 0;
  for (const Rank rank : layout.mesh.ranks()) {
    double outer = 1, of_rank = 1;
    for (std::size_t dim = 0; dim < layout.shape.size(); ++dim) {
      double runs = 0;
      const IndexSet held = indices(layout, static_cast<int>(dim), rank);
      for (const Run& run : held) runs += static_cast<double>(run.count);
      if (size(held) != layout.shape[dim]) of_rank = outer * runs;
      outer *= static_cast<double>(size(held));
    }
    total += of_rank;
  }
  return total;
}

bool fits_a_check(const Redistribution& planned) {
  return stretches(planned.source) + stretches(planned.target) <= kMostStretches;
}

bool fits_a_run(const Redistribution& planned) {
  Rank last = 0;
  for (const Layout* layout : {&planned.source, &planned.target}) {
    last = std::max(last, *std::max_element(layout->mesh.ranks().begin(), layout->mesh.ranks().end()));
    if (layout->mesh.size() <= kMostRunRanks && elements_of_all(*layout) > kMostRunElements) return false;
  }
  return last < kMostRunRanks;
}

void check_figures(const Redistribution& planned, const RedistributeRequest& request, const Trial& trial) {
  trial.require(planned.times_the_best() >= 1, "bound", "the plan is said to be ", planned.times_the_best(),
                " times the best, which is less than the best");
  trial.require(planned.peak_bytes <= planned.bound_bytes, "memory bound", "peak ", planned.peak_bytes,
                " bytes, bound ", planned.bound_bytes);
  trial.require(!equivalent(planned.source, planned.target) || planned.steps.empty() ||
                    planned.travel_dtype != planned.source.dtype,
                "no needless step", planned.steps.size(), " steps between equivalent layouts ",
                to_string(planned.source), " and ", to_string(planned.target));
  std::int64_t most = 0;
  for (const RedistributionStep& step : planned.steps) most = std::max(most, step.temporary_bytes_max);
  // By the rule of the header: M is the largest shard, in the widest type on the way.
  const std::int64_t width = std::max(
      {size_bytes(planned.source.dtype), size_bytes(planned.target.dtype), size_bytes(planned.travel_dtype)});
  double largest = 0;
  for (const Layout* layout : {&planned.source, &planned.target}) {
    for (const Rank rank : layout->mesh.ranks())
      largest =
          std::max(largest, static_cast<double>(local_numel(*layout, rank)) * static_cast<double>(width));
  }
  trial.require(static_cast<double>(most) <= request.options.max_memory_factor * 2 * largest, "memory bound",
                most, " bytes of temporaries, where max_memory_factor=", request.options.max_memory_factor,
                " allows ", request.options.max_memory_factor * 2 * largest);
}

// The memory that the plans of all ranks need is the memory that the planner declares.
void check_memory(const Redistribution& planned, const std::vector<Plan>& plans, const Trial& trial) {
  std::int64_t peak = 0, arena = 0, most = 0;
  for (const Plan& plan : plans) {
    peak = std::max(peak, peak_bytes(plan));
    arena = std::max(arena, plan.arena_bytes);
  }
  for (const RedistributionStep& step : planned.steps) most = std::max(most, step.temporary_bytes_max);
  trial.require(peak == planned.peak_bytes, "memory", "the plans need ", peak, " bytes, and ",
                planned.peak_bytes, " are declared");
  trial.require(arena == most, "memory", "the arenas have ", arena, " bytes, and ", most,
                " of temporaries are declared");
}

RedistributeRunOptions run_options(const RedistributeRequest& request, const Gradient& gradient,
                                   std::span<const Plan> plans, const Trial& trial) {
  RedistributeRunOptions options;
  options.scale = gradient.scale;
  options.target = request.device_target;
  options.digests = true;
  const RunOrder order = run_order(trial.fuzz_case().order(), plans);
  options.schedule = order.schedule;
  options.order = order.order;
  options.seed = request.seed + order.seed;
  return options;
}

// A fault is tolerated, or reported with whoever did it.
void run_with_faults(const RedistributeRequest& request, const Gradient& gradient,
                     const std::vector<Plan>& plans, Trial& trial) {
  FaultRunOptions options;
  options.seed = request.seed;
  options.scale = gradient.scale;
  const std::vector<InjectedFault> faults = faults_of(trial.fuzz_case());
  // What another program would do: the way back, where there is one of the same ranks.
  std::vector<Plan> others;
  if (!is_partial(gradient.redistribution.source) &&
      gradient.redistribution.source.mesh == gradient.redistribution.target.mesh)
    others = lower_all(plan_redistribution(gradient.redistribution.target, gradient.redistribution.source));
  const FaultVerdict verdict = judge_redistribution(gradient.redistribution, plans, faults, options, others);
  trial.require(verdict.holds(), "fault", name(verdict.kind), ": ", to_string(faults.front()), ": ",
                verdict.message);
  trial.hasher().add(name(verdict.kind));
}

void run_small(const RedistributeRequest& request, const Gradient& gradient, Trial& trial) {
  const Redistribution& planned = gradient.redistribution;
  const std::vector<Plan> plain = trial.property("lowering", [&] { return lower_all(planned); });
  check_memory(planned, plain, trial);
  const bool differs = gradient.scale != 1 || request.device_target != host_target();
  std::vector<Plan> plans = !differs ? plain : trial.property("lowering", [&] {
    return lower_all_scaled(planned, gradient.scale, request.device_target);
  });
  plant(trial.fuzz_case(), false, plans);
  for (const Plan& plan : plans) trial.hasher().add(digest(plan));
  if (!fits_a_run(planned)) {
    trial.property("plan check", [&] { check(plans); });
    return;
  }
  if (!trial.fuzz_case().faults().empty()) return run_with_faults(request, gradient, plans, trial);
  const auto run = [&](const RedistributeRunOptions& options) {
    return run_redistribution(planned, plans, options);
  };
  RedistributeRunOptions options = run_options(request, gradient, plans, trial);
  trial.property("run", [&] { add_traces(run(options).traces, trial.hasher()); });
  if (wants_all_orders(trial.fuzz_case().order(), plans)) {
    explore_all_orders(
        [&](const BatonOrder& order) {
          options.order = order;
          Hasher hasher;
          add_traces(run(options).traces, hasher);
          return to_string(hasher.digest());
        },
        trial);
  }
  if (trial.asks("progress")) check_progress_rules(plans, trial);
  trial.ran();
}

// Of many ranks a few are lowered: their plans say the same of what they were made from and of the groups
// that they share, which is all that ranks compare before they run.
void lower_some(const Redistribution& planned, Trial& trial) {
  const std::vector<Rank>& ranks = planned.source.mesh.ranks();
  std::map<Rank, Plan> plans;
  for (int i = 0; i < kLoweredOfMany; ++i) {
    const Rank rank = ranks[ranks.size() * static_cast<std::size_t>(i) / kLoweredOfMany];
    if (!plans.contains(rank))
      plans.emplace(rank, trial.property("lowering", [&] { return lower(planned, rank); }));
  }
  std::map<Rank, PlanDigests> digests;
  for (const auto& [rank, plan] : plans) {
    digests.emplace(rank, plan_digests(plan));
    trial.hasher().add(digest(plan));
  }
  trial.property("plans agree", [&] { require_equal_plans(digests); });
}

}  // namespace

std::int64_t elements_of_all(const Layout& layout) {
  double total = 0;
  for (const Rank rank : layout.mesh.ranks()) total += static_cast<double>(local_numel(layout, rank));
  return static_cast<std::int64_t>(std::min(total, 1e18));
}

void judge_redistribution(const proto::Redistribute& job, Trial& trial) {
  RedistributeRequest request = make_request(job);
  require_legal(request);
  if (has_too_many_axes(request.source) || has_too_many_axes(request.target))
    return require_refused(request, trial);
  for (const Layout* layout : {&request.source, &request.target}) check_index_sets(*layout, trial);
  const Gradient gradient = [&]() -> Gradient {
    try {
      return plan_request(request);
    } catch (const MemoryBoundTooTight& error) {
      return within_named_factor(request, error, trial);
    } catch (const Error& error) {
      throw trial.failure("refused", str("the rules allow it, and it is refused: ", error.what()));
    }
  }();
  const Redistribution& planned = gradient.redistribution;
  check_figures(planned, request, trial);
  trial.hasher().add(planned.inputs).add(planned.time_us).add(planned.peak_bytes);
  const int ranks = std::max(planned.source.mesh.size(), planned.target.mesh.size());
  if (ranks <= kMostCheckedRanks && fits_a_check(planned))
    run_small(request, gradient, trial);
  else
    lower_some(planned, trial);
  if (trial.fuzz_case().faults().empty()) check_redistribution_laws(request, gradient, trial);
}

}  // namespace cp::sim
