#include "shared/redistribute/redistribution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "shared/base/error.h"
#include "shared/redistribute/search.h"

namespace cp {
namespace {

using detail::LayoutSpace;
using detail::MoveCost;
using detail::MoveCoster;
using detail::Search;
using detail::State;
using detail::StateMove;

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

std::string axis_text(const Layout& layout, std::size_t axis) {
  return str("mesh axis ", layout.mesh.axes()[axis].name, " (size ", layout.mesh.axes()[axis].size, ")");
}

// A request on one mesh, axis by axis.
void validate_axis(const Layout& source, const Layout& target, std::size_t axis,
                   const RedistributeOptions& options) {
  const auto* wanted = std::get_if<Partial>(&target.placements[axis]);
  if (wanted == nullptr || target.mesh.axes()[axis].size == 1) return;
  const auto* held = std::get_if<Partial>(&source.placements[axis]);
  if (held != nullptr && held->op == wanted->op) return;
  const std::string where = axis_text(target, axis);
  if (held != nullptr) {
    throw InvalidInput(
        str("cannot redistribute P(", name(held->op), ") to P(", name(wanted->op), ") on ", where,
            ": values pending one reduction are no contributions to another; reduce to R or S first"));
  }
  if (!options.allow_to_partial) {
    throw InvalidInput(str("cannot redistribute ", placements_to_string(source), " to ",
                           placements_to_string(target), ": ", where, " holds finished values, and P(",
                           name(wanted->op), ") would ask to undo a reduction; use R or ", "S(dim) there"));
  }
  if (wanted->op != ReduceOp::sum) {
    throw InvalidInput(
        str("cannot make P(", name(wanted->op), ") on ", where, ": a gradient is a sum; use P(sum)"));
  }
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
        coster(space, given.cost, travel) {
    const std::int64_t width = widest_bytes(source, target, travel);
    std::int64_t largest = 0;
    for (int p = 0; p < space.num_ranks(); ++p) {
      const std::int64_t before = space.numel(space.source(), p);
      const std::int64_t after = space.numel(space.target(), p);
      largest = std::max({largest, before * width, after * width});
      ends_bytes.push_back(before * size_bytes(source.dtype) + after * size_bytes(target.dtype));
    }
    shard_bytes = largest;
    temporary_limit = std::floor(options.max_memory_factor * 2 * static_cast<double>(largest));
  }

  bool casts_before() const { return source.dtype != travel; }
  bool casts_after() const { return target.dtype != travel; }

  std::vector<double> limits(double most_peak) const {
    std::vector<double> limits;
    for (const std::int64_t ends : ends_bytes) {
      limits.push_back(std::min(temporary_limit, most_peak - static_cast<double>(ends)));
    }
    return limits;
  }

  Redistribution describe(const std::vector<StateMove>& moves);
  std::optional<Redistribution> solve(double most_peak) {
    std::vector<double> most = limits(most_peak);
    // Source and target alone may take more: then an empty chain, which no limit stops, does too.
    if (std::any_of(most.begin(), most.end(), [](double bytes) { return bytes < 0; })) return std::nullopt;
    Search search(space, coster, options, casts_before(), casts_after(), std::move(most));
    const std::optional<std::vector<StateMove>> moves = search.run();
    if (!moves) return std::nullopt;
    return describe(*moves);
  }

  const Layout& source;
  const Layout& target;
  const RedistributeOptions& options;
  DType travel;
  LayoutSpace space;
  MoveCoster coster;
  std::vector<std::int64_t> ends_bytes;  // source and target shards, by position
  std::int64_t shard_bytes = 0;          // M
  double temporary_limit = 0;
};

Digest request_digest(const Layout& source, const Layout& target, const RedistributeOptions& options) {
  Hasher hasher;
  hash(hasher, source);
  hash(hasher, target);
  hash(hasher, options.cost);
  hasher.add(static_cast<int>(options.objective)).add(options.max_memory_factor);
  hasher.add(options.travel_dtype ? static_cast<int>(*options.travel_dtype) : -1);
  hasher.add(options.allow_to_partial).add(static_cast<int>(options.partial_rule));
  return hasher.digest();
}

Redistribution Request::describe(const std::vector<StateMove>& moves) {
  Redistribution result{source,
                        target,
                        travel,
                        options.partial_rule,
                        {},
                        0,
                        0,
                        0,
                        0,
                        0,
                        request_digest(source, target, options)};
  const std::size_t n = idx(space.num_ranks());
  std::vector<double> time_us(n, 0);
  std::vector<std::int64_t> received(n, 0), temporaries(n, 0);
  MoveCost cost;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const bool last = i + 1 == moves.size();
    coster.evaluate(moves[i], {i == 0 && !casts_before(), last && !casts_after(), i == 0 && casts_before()},
                    cost);
    RedistributionStep step{{moves[i].kind,
                             {moves[i].axes.begin(), moves[i].axes.end()},
                             space.layout_of(moves[i].from),
                             space.layout_of(moves[i].to)}};
    for (std::size_t p = 0; p < n; ++p) {
      time_us[p] += cost.time_us[p];
      received[p] += cost.bytes_received[p];
      temporaries[p] = std::max(temporaries[p], cost.temporary_bytes[p]);
      step.time_us = std::max(step.time_us, cost.time_us[p]);
      step.bytes_received_max = std::max(step.bytes_received_max, cost.bytes_received[p]);
      step.bytes_received_total += cost.bytes_received[p];
      step.wire_bytes_received_total += cost.wire_bytes_received[p];
      step.temporary_bytes_max = std::max(step.temporary_bytes_max, cost.temporary_bytes[p]);
    }
    result.bytes_received_total += step.bytes_received_total;
    result.steps.push_back(std::move(step));
  }
  const std::vector<double> cast_us = coster.cast_us(casts_before(), casts_after());
  for (std::size_t p = 0; p < n; ++p) {
    result.time_us = std::max(result.time_us, time_us[p] + cast_us[p]);
    result.bytes_received_max = std::max(result.bytes_received_max, received[p]);
    result.peak_bytes = std::max(result.peak_bytes, ends_bytes[p] + temporaries[p]);
    result.bound_bytes =
        std::max(result.bound_bytes, ends_bytes[p] + static_cast<std::int64_t>(temporary_limit));
  }
  return result;
}

// A layout of a given move. Its dtype says nothing: moves carry the travelling one.
State state_on_the_way(Request& request, const Layout& layout) {
  const Layout& source = request.source;
  if (layout.shape != source.shape || (layout.mesh != source.mesh && layout.mesh != request.target.mesh)) {
    throw InvalidInput(str("a move from or to ", to_string(layout), " is none of a tensor of shape ",
                           join(source.shape, "x"), " between ", source.mesh.to_string(), " and ",
                           request.target.mesh.to_string()));
  }
  const int side = layout.mesh == source.mesh ? 0 : request.space.num_sides() - 1;
  for (const int axis : partial_axes(layout)) {
    const ReduceOp op = std::get<Partial>(layout.placements[idx(axis)]).op;
    if (layout.mesh.axis_size(axis) > 1 && op != request.space.reduction(side, axis)) {
      throw InvalidInput(str("a move from or to ", placements_to_string(layout), ": ",
                             axis_text(layout, idx(axis)), " is P(",
                             name(request.space.reduction(side, axis)), ") in this redistribution"));
    }
  }
  return request.space.state_of(layout, side);
}

constexpr double kNoLimit = 1e300;

}  // namespace

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
    for (std::size_t axis = 0; axis < target.placements.size(); ++axis)
      validate_axis(source, target, axis, options);
    return;
  }
  if (is_partial(target) && !options.allow_to_partial) {
    throw InvalidInput(str("cannot redistribute to ", placements_to_string(target), " on another mesh (",
                           target.mesh.to_string(), "): its partial values would have no counterpart on ",
                           source.mesh.to_string(), "; use R or S(dim) there"));
  }
}

Redistribution plan_redistribution(const Layout& source, const Layout& target,
                                   const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  Request request(source, target, options);
  if (std::optional<Redistribution> best = request.solve(kNoLimit)) return *std::move(best);

  std::int64_t least = 0;
  request.temporary_limit = 1e6 * static_cast<double>(request.shard_bytes);
  while (const std::optional<Redistribution> leaner = request.solve(kNoLimit)) {
    least = 0;
    for (const RedistributionStep& step : leaner->steps) least = std::max(least, step.temporary_bytes_max);
    request.temporary_limit = static_cast<double>(least) - 1;
  }
  const double whole = 2 * static_cast<double>(request.shard_bytes);
  double thousandths = std::ceil(static_cast<double>(least) / whole * 1000);
  while (std::floor(thousandths / 1000 * whole) < static_cast<double>(least)) ++thousandths;  // 0.58 * 100
  throw Infeasible(str("no redistribution from ", placements_to_string(source), " to ",
                       placements_to_string(target),
                       " keeps its temporaries within max_memory_factor=", options.max_memory_factor,
                       " x 2 x ", human_bytes(request.shard_bytes), "; the leanest one needs ",
                       human_bytes(least), ", max_memory_factor=", thousandths / 1000));
}

std::vector<Redistribution> pareto_redistributions(const Layout& source, const Layout& target,
                                                   const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  Request request(source, target, options);
  std::vector<Redistribution> chains;
  double most_peak = kNoLimit;
  while (std::optional<Redistribution> next = request.solve(most_peak)) {
    most_peak = static_cast<double>(next->peak_bytes) - 1;
    chains.push_back(*std::move(next));
  }
  return chains;
}

Redistribution follow_moves(const Layout& source, const Layout& target, std::span<const Move> moves,
                            const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  Request request(source, target, options);
  LayoutSpace& space = request.space;
  std::vector<StateMove> chain;
  State here = space.source();
  for (const Move& move : moves) {
    StateMove next{move.kind,
                   {move.axes.begin(), move.axes.end()},
                   state_on_the_way(request, move.from),
                   state_on_the_way(request, move.to)};
    if (!space.equivalent(here, next.from)) {
      throw InvalidInput(str("move ", chain.size(), " (", name(move.kind), ") begins at ",
                             placements_to_string(move.from), " where the chain has come to ",
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
  return request.describe(chain);
}

}  // namespace cp
