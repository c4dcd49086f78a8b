#include "shared/redistribute/redistribution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/redistribute/chain_search.h"

namespace cp {
namespace {

using detail::ChainSearch;
using detail::kTriedLayouts;
using detail::LayoutGraph;
using detail::MoveCost;
using detail::MoveCoster;
using detail::Patience;
using detail::State;
using detail::StateMove;
using detail::StateSpace;

// All moves are tried only if there are at most this many ranks, since costing an uneven move takes time in
// proportion to them. Chosen with kEffortOfAll; beyond it the answer comes with a bound instead of a proof.
constexpr int kTriedRanks = 256;
// More bytes than any peak, and finite.
constexpr double kNoLimit = 1e300;
// The share of a request's effort that each further chain of a Pareto set gets if not all moves are tried.
// Chosen: a set of 16 chains takes twice the time of its first.
constexpr double kShareOfFurtherChains = 1.0 / 16;

std::string axis_text(const Layout& layout, std::size_t axis) {
  return str("mesh axis ", layout.mesh.axes()[axis].name, " (size ", layout.mesh.axes()[axis].size, ")");
}

// A request on one mesh, axis by axis.
void validate_axis(const Layout& source, const Layout& target, std::size_t axis) {
  const auto* held = std::get_if<Partial>(&source.placements[axis]);
  const auto* wanted = std::get_if<Partial>(&target.placements[axis]);
  if (held == nullptr || wanted == nullptr || held->op == wanted->op) return;
  if (target.mesh.axes()[axis].size == 1) return;
  throw InvalidInput(str(
      "cannot redistribute P(", name(held->op), ") to P(", name(wanted->op), ") on ", axis_text(target, axis),
      ": partial values of one reduction cannot go into another; reduce them to R or S first"));
}

// The widest of the types that the tensor has on its way.
std::int64_t widest_bytes(const Layout& source, const Layout& target, DType travel) {
  return std::max({size_bytes(source.dtype), size_bytes(target.dtype), size_bytes(travel)});
}

struct Request {
  Request(const Layout& from, const Layout& to, const RedistributeOptions& given)
      : source(from),
        target(to),
        options(given),
        travel(given.travel_dtype.value_or(to.dtype)),
        space(from, to, travel),
        coster(space, given.cost, given.partial_rule, travel, size_bytes(from.dtype), size_bytes(to.dtype)) {
    const std::int64_t width = widest_bytes(source, target, travel);
    shard_bytes = width * std::max(space.largest_numel(space.source()), space.largest_numel(space.target()));
    temporary_limit = std::floor(options.max_memory_factor * 2 * static_cast<double>(shard_bytes));
  }

  bool casts_before() const { return source.dtype != travel; }
  bool casts_after() const { return target.dtype != travel; }

  // A chain that keeps the limits: an empty one keeps any. A search with no patience takes a share of the
  // effort alone.
  std::optional<Redistribution> solve(double most_peak, Patience patience) {
    if (static_cast<double>(coster.largest_ends_bytes()) > most_peak) return std::nullopt;
    if (!graph) graph.emplace(space, coster, options.cost, casts_before(), casts_after());
    const bool few = count_layouts(space, 0) <= kTriedLayouts && space.num_ranks() <= kTriedRanks;
    const auto cast_ps = std::llround(coster.cast_us(casts_before(), casts_after()) * 1e6);
    ChainSearch search(*graph, options.objective, cast_ps, few);
    const ChainSearch::Answer answer = search.run(
        {temporary_limit, most_peak}, patience != Patience::none || few ? 1 : kShareOfFurtherChains,
        few ? std::max(patience, Patience::some) : patience);
    if (!answer.best) return std::nullopt;
    Redistribution result = describe(answer.best->moves);
    const bool by_time = options.objective == Objective::time;
    const double own = by_time ? result.time_us : static_cast<double>(result.wire_bytes_received_max);
    const auto least = static_cast<double>(answer.least_possible) * (by_time ? 1e-6 : 1);
    result.least_possible = answer.least_possible >= answer.best->cost.primary ? own : std::min(own, least);
    return result;
  }

  // The best chain within the memory bound. Where a search that does not try all moves comes to its end
  // without one, ever leaner chains are looked for until one keeps the bound: the same ones whatever the
  // bound, so that a bound which fits the leanest always works. Where none keeps it, `least` is what that one
  // needs.
  std::optional<Redistribution> first(std::int64_t& least);

  Redistribution describe(const std::vector<StateMove>& moves);

  const Layout& source;
  const Layout& target;
  const RedistributeOptions& options;
  DType travel;
  StateSpace space;
  MoveCoster coster;
  std::optional<LayoutGraph> graph;
  std::int64_t shard_bytes = 0;  // M
  double temporary_limit = 0;
};

Digest request_digest(const Layout& source, const Layout& target, const RedistributeOptions& options) {
  Hasher hasher;
  hash(hasher, source);
  hash(hasher, target);
  return hash(hasher, options).digest();
}

Redistribution Request::describe(const std::vector<StateMove>& moves) {
  const std::int64_t ends = coster.largest_ends_bytes();
  Redistribution result{.source = source,
                        .target = target,
                        .travel_dtype = travel,
                        .partial_rule = options.partial_rule,
                        .steps = {},
                        .peak_bytes = ends,
                        .bound_bytes = ends + static_cast<std::int64_t>(temporary_limit),
                        .objective = options.objective,
                        .inputs = request_digest(source, target, options)};
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const bool last = i + 1 == moves.size();
    // The shards of the caller are in no temporary: the first move reads the input and the last one writes
    // the output, unless a cast stands between.
    const MoveCost cost = coster.evaluate(
        moves[i], {i == 0 && !casts_before(), last && !casts_after(), i == 0 && casts_before()});
    result.steps.push_back({{moves[i].kind, space.mesh_axes(moves[i].from.side, moves[i].axes),
                             space.layout_of(moves[i].from), space.layout_of(moves[i].to)},
                            cost.time_us,
                            cost.bytes_received,
                            cost.bytes_received_total,
                            cost.wire_bytes_received_total,
                            cost.temporary_bytes});
    result.time_us += cost.time_us;
    result.bytes_received_max += cost.bytes_received;
    result.bytes_received_total += cost.bytes_received_total;
    result.wire_bytes_received_max += cost.wire_bytes_received;
    result.peak_bytes = std::max(result.peak_bytes, cost.peak_bytes);
  }
  result.time_us += coster.cast_us(casts_before(), casts_after());
  return result;
}

std::optional<Redistribution> Request::first(std::int64_t& least) {
  if (std::optional<Redistribution> best = solve(kNoLimit, Patience::some)) return best;
  const double limit = temporary_limit;
  // What was costed already spares effort, so that this search would go further or not with what the first
  // one saw.
  graph.reset();
  temporary_limit = 1e6 * static_cast<double>(shard_bytes);  // beyond what any move takes, and finite
  bool found = false;
  while (std::optional<Redistribution> leaner = solve(kNoLimit, found ? Patience::none : Patience::endless)) {
    found = true;
    least = 0;
    for (const RedistributionStep& step : leaner->steps) least = std::max(least, step.temporary_bytes_max);
    if (static_cast<double>(least) <= limit) {
      leaner->bound_bytes = coster.largest_ends_bytes() + static_cast<std::int64_t>(limit);
      return leaner;
    }
    temporary_limit = static_cast<double>(least) - 1;
  }
  CP_INVARIANT(found, "no chain at all from ", to_string(source), " to ", to_string(target));
  return std::nullopt;
}

// A layout of a given move. Its dtype says nothing: moves carry the travelling one.
State state_on_the_way(Request& request, const Layout& layout) {
  const Layout& source = request.source;
  if (layout.shape != source.shape || (layout.mesh != source.mesh && layout.mesh != request.target.mesh)) {
    throw InvalidInput(str("a move from or to ", to_string(layout), " does not belong to a tensor of shape ",
                           join(source.shape, "x"), " between ", source.mesh.to_string(), " and ",
                           request.target.mesh.to_string()));
  }
  const int side = layout.mesh == source.mesh ? 0 : request.space.num_sides() - 1;
  for (const int axis : partial_axes(layout)) {
    if (layout.mesh.axis_size(axis) == 1) continue;
    const ReduceOp op = std::get<Partial>(layout.placements[idx(axis)]).op;
    const int number = request.space.axes_of(side, std::span(&axis, 1)).front();
    if (op != request.space.reduction(side, number)) {
      throw InvalidInput(str("a move from or to ", placements_to_string(layout), ": ",
                             axis_text(layout, idx(axis)), " is P(",
                             name(request.space.reduction(side, number)), ") in this redistribution"));
    }
  }
  return request.space.state_of(layout, side);
}

}  // namespace

double Redistribution::times_the_best() const {
  const double own = objective == Objective::time ? time_us : static_cast<double>(wire_bytes_received_max);
  if (own <= least_possible) return 1;
  return least_possible > 0 ? own / least_possible : std::numeric_limits<double>::infinity();
}

Hasher& hash(Hasher& hasher, const RedistributeOptions& options) {
  // A field that is added does not compile here until it counts: without it, a cache would give out a plan
  // made with other options.
  const auto& [cost, objective, max_memory_factor, travel_dtype, partial_rule] = options;
  hash(hasher, cost).add(static_cast<int>(objective)).add(max_memory_factor);
  hasher.add(travel_dtype ? static_cast<int>(*travel_dtype) : -1);
  return hasher.add(static_cast<int>(partial_rule));
}

std::string_view name(MoveKind kind) {
  constexpr std::array<std::string_view, 8> kNames = {"slice",           "all_gather", "all_to_all",
                                                      "reduce_scatter",  "all_reduce", "exchange",
                                                      "reduce_exchange", "to_partial"};
  return kNames[static_cast<std::size_t>(kind)];
}

void validate_redistribution(const Layout& source, const Layout& target, const RedistributeOptions& options) {
  if (source.shape != target.shape) {
    throw InvalidInput(str("source has shape ", join(source.shape, "x"), " and target ",
                           join(target.shape, "x"),
                           "; a redistribution moves one tensor, so give both the same shape"));
  }
  const DType travel = options.travel_dtype.value_or(target.dtype);
  for (const DType dtype : {target.dtype, travel}) {
    if (dtype != source.dtype && (!is_floating(dtype) || !is_floating(source.dtype))) {
      throw InvalidInput(str("cannot redistribute ", name(source.dtype), " as ", name(dtype),
                             ": only floating types are converted on the way; keep ", name(source.dtype)));
    }
  }
  if (!(options.max_memory_factor > 0)) {
    throw InvalidInput(str("max_memory_factor=", options.max_memory_factor,
                           " must be more than 0; 1 allows temporaries of twice ", "the largest shard"));
  }
  options.cost.validate();
  if (source.mesh == target.mesh) {
    for (std::size_t axis = 0; axis < target.placements.size(); ++axis) validate_axis(source, target, axis);
  }
}

Redistribution plan_redistribution(const Layout& source, const Layout& target,
                                   const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  Request request(source, target, options);
  std::int64_t least = 0;
  if (std::optional<Redistribution> best = request.first(least)) return *std::move(best);

  const double whole = 2 * static_cast<double>(request.shard_bytes);
  double thousandths = std::max(1.0, std::ceil(static_cast<double>(least) / whole * 1000));   // 0 is none
  while (std::floor(thousandths / 1000 * whole) < static_cast<double>(least)) ++thousandths;  // 0.58 * 100
  throw MemoryBoundTooTight(
      str("no redistribution from ", placements_to_string(source), " to ", placements_to_string(target),
          " keeps its temporaries within max_memory_factor=", options.max_memory_factor, " x 2 x ",
          human_bytes(request.shard_bytes), "; the smallest one found needs ", human_bytes(least),
          ": use max_memory_factor=", thousandths / 1000),
      thousandths / 1000);
}

std::vector<Redistribution> pareto_redistributions(const Layout& source, const Layout& target,
                                                   const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  Request request(source, target, options);
  std::vector<Redistribution> chains;
  double most_peak = kNoLimit;
  std::int64_t least = 0;
  std::optional<Redistribution> next = request.first(least);
  while (next) {
    most_peak = static_cast<double>(next->peak_bytes) - 1;
    chains.push_back(*std::move(next));
    next = request.solve(most_peak, Patience::none);
  }
  return chains;
}

Redistribution follow_moves(const Layout& source, const Layout& target, std::span<const Move> moves,
                            const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  Request request(source, target, options);
  StateSpace& space = request.space;
  std::vector<StateMove> chain;
  State here = space.source();
  for (const Move& move : moves) {
    StateMove next{move.kind, {}, state_on_the_way(request, move.from), state_on_the_way(request, move.to)};
    next.axes = space.axes_of(next.from.side, move.axes);
    if (!space.equivalent(here, next.from)) {
      throw InvalidInput(str("move ", chain.size(), " (", name(move.kind), ") begins at ",
                             placements_to_string(move.from), ", but the chain has come to ",
                             placements_to_string(space.layout_of(here))));
    }
    here = next.to;
    chain.push_back(std::move(next));
  }
  if (!space.equivalent(here, space.target())) {
    throw InvalidInput(str("the chain of ", moves.size(), " moves ends at ",
                           placements_to_string(space.layout_of(here)), ", not at the target ",
                           placements_to_string(target)));
  }
  Redistribution followed = request.describe(chain);
  followed.least_possible = 0;  // nobody looked for a better one
  return followed;
}

}  // namespace cp
