#include "tests/redistribute/chains.h"

#include <algorithm>
#include <set>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp::testing {
Layout layout_by_axes(const Mesh& mesh, std::string_view text, const Shape& shape, DType dtype) {
  std::vector<Placement> placements(idx(mesh.num_axes()), Replicate{});
  std::vector<std::vector<int>> order(shape.size());
  const auto axes_in = [&](std::string_view list) {
    std::vector<int> axes;
    for (const std::string_view axis : split(list, ',')) axes.push_back(mesh.axis_index(axis));
    return axes;
  };
  std::vector<std::string_view> dims = split(text, '|');
  if (!dims.empty() && dims.back().starts_with("P:")) {
    for (const int axis : axes_in(dims.back().substr(2))) placements[idx(axis)] = Partial{ReduceOp::sum};
    dims.pop_back();
  }
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    for (const int axis : axes_in(dims[dim])) {
      placements[idx(axis)] = Shard{static_cast<int>(dim)};
      order[dim].push_back(axis);
    }
  }
  return make_layout(mesh, placements, shape, dtype, order);
}

Layout layout_by_placements(const Mesh& mesh, std::string_view text, const Shape& shape, DType dtype) {
  std::vector<Placement> placements;
  for (const std::string_view part : split(text, ',')) {
    if (part == "R") placements.emplace_back(Replicate{});
    if (part == "P") placements.emplace_back(Partial{ReduceOp::sum});
    if (part.front() == 'S')
      placements.emplace_back(Shard{static_cast<int>(parse_int(part.substr(1), "dim"))});
  }
  return make_layout(mesh, placements, shape, dtype);
}

Move move_between(const Layout& from, const Layout& to) {
  // What an axis is in a layout: the dimension it shards, or one of these.
  constexpr int kReplicated = -1, kPartial = -2;
  const auto role = [](const Layout& layout, int axis) {
    const Placement& placement = layout.placements[idx(axis)];
    if (const auto* shard = std::get_if<Shard>(&placement)) return shard->dim;
    return std::holds_alternative<Partial>(placement) ? kPartial : kReplicated;
  };
  Move move{MoveKind::exchange, {}, from, to};
  std::set<MoveKind> kinds;
  std::set<int> sources, destinations;
  for (int axis = 0; axis < from.mesh.num_axes(); ++axis) {
    const int before = role(from, axis), after = role(to, axis);
    if (before == after) continue;
    move.axes.push_back(axis);
    if (before == kPartial)
      kinds.insert(after == kReplicated ? MoveKind::all_reduce : MoveKind::reduce_scatter);
    if (before == kReplicated) kinds.insert(MoveKind::slice);
    if (before >= 0) kinds.insert(after == kReplicated ? MoveKind::all_gather : MoveKind::all_to_all);
    sources.insert(before);
    destinations.insert(after);
  }
  const bool one_kind = kinds.size() == 1;
  const bool swaps =
      one_kind && *kinds.begin() == MoveKind::all_to_all && (sources.size() > 1 || destinations.size() > 1);
  if (one_kind && !swaps) move.kind = *kinds.begin();
  // The group counts its ranks in the order in which the sharded dimension does.
  const Layout& ordered = move.kind == MoveKind::reduce_scatter ? to : from;
  std::vector<int> axes;
  for (const std::vector<int>& dim : ordered.shard_axes) {
    for (const int axis : dim) {
      if (std::find(move.axes.begin(), move.axes.end(), axis) != move.axes.end()) axes.push_back(axis);
    }
  }
  if (axes.size() == move.axes.size()) move.axes = axes;
  if (move.kind == MoveKind::slice) move.axes.clear();
  if (move.kind == MoveKind::exchange) {
    move.axes.clear();
    for (int axis = 0; axis < from.mesh.num_axes(); ++axis) move.axes.push_back(axis);
  }
  return move;
}

Redistribution chain(const std::vector<Layout>& layouts, const RedistributeOptions& options) {
  std::vector<Move> moves;
  for (std::size_t i = 0; i + 1 < layouts.size(); ++i)
    moves.push_back(move_between(layouts[i], layouts[i + 1]));
  return follow_moves(layouts.front(), layouts.back(), moves, options);
}

std::string communications(const Redistribution& redistribution) {
  std::vector<std::string_view> kinds;
  for (const RedistributionStep& step : redistribution.steps) {
    const bool local = step.move.kind == MoveKind::slice || step.move.kind == MoveKind::to_partial;
    if (!local) kinds.push_back(name(step.move.kind));
  }
  return join(kinds, " ");
}

bool matched_by_pareto_set(const Redistribution& wanted, const RedistributeOptions& options) {
  const std::vector<Redistribution> set = pareto_redistributions(wanted.source, wanted.target, options);
  return std::any_of(set.begin(), set.end(), [&](const Redistribution& ours) {
    // The search counts whole picoseconds: in both chains each step is rounded by half a one at most, and so
    // are the casts.
    constexpr double kHalfPicosecondUs = 0.5e-6;
    const double rounding_us =
        kHalfPicosecondUs * static_cast<double>(ours.steps.size() + wanted.steps.size() + 2);
    return ours.time_us <= wanted.time_us + rounding_us &&
           ours.bytes_received_max <= wanted.bytes_received_max && ours.peak_bytes <= wanted.peak_bytes;
  });
}

}  // namespace cp::testing
