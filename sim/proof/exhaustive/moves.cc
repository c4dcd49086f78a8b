#include "sim/proof/exhaustive/moves.h"

#include <algorithm>

#include "sim/proof/exhaustive/layouts.h"

namespace cp::sim {

namespace {

using AxisList = std::vector<int>;

// A layout as its axis lists, without axes of size 1.
struct AxisLists {
  std::vector<AxisList> shards;  // by dimension, outermost first
  AxisList partial;
  bool operator==(const AxisLists&) const = default;
};

AxisLists axis_lists(const Layout& layout) {
  const auto several = [&](const AxisList& axes) {
    AxisList kept;
    std::copy_if(axes.begin(), axes.end(), std::back_inserter(kept),
                 [&](int axis) { return layout.mesh.axis_size(axis) > 1; });
    return kept;
  };
  AxisLists lists;
  lists.shards.resize(layout.shape.size());
  for (std::size_t dim = 0; dim < layout.shard_axes.size(); ++dim) {
    lists.shards[dim] = several(layout.shard_axes[dim]);
  }
  lists.partial = several(partial_axes(layout));
  return lists;
}

// What `longer` appends to `shorter`; nothing when it does not begin with it.
std::optional<AxisList> appended(const AxisList& shorter, const AxisList& longer) {
  if (shorter.size() > longer.size() || !std::equal(shorter.begin(), shorter.end(), longer.begin())) {
    return std::nullopt;
  }
  return AxisList(longer.begin() + static_cast<std::ptrdiff_t>(shorter.size()), longer.end());
}

// All axes that the dimensions of `longer` append to those of `shorter`, if every dimension does.
std::optional<AxisList> appended_anywhere(const std::vector<AxisList>& shorter,
                                          const std::vector<AxisList>& longer) {
  AxisList all;
  for (std::size_t dim = 0; dim < shorter.size(); ++dim) {
    const std::optional<AxisList> axes = appended(shorter[dim], longer[dim]);
    if (!axes) return std::nullopt;
    all.insert(all.end(), axes->begin(), axes->end());
  }
  return all;
}

AxisList sorted(AxisList axes) {
  std::sort(axes.begin(), axes.end());
  return axes;
}

// The axes that move from the end of one dimension to the end of another, if that is all that happens.
std::optional<AxisList> moved_between_dims(const std::vector<AxisList>& from,
                                           const std::vector<AxisList>& to) {
  AxisList removed, added;
  int num_removing = 0, num_adding = 0;
  for (std::size_t dim = 0; dim < from.size(); ++dim) {
    if (const std::optional<AxisList> axes = appended(from[dim], to[dim])) {
      num_adding += !axes->empty();
      added.insert(added.end(), axes->begin(), axes->end());
    } else if (const std::optional<AxisList> gone = appended(to[dim], from[dim])) {
      ++num_removing;
      removed.insert(removed.end(), gone->begin(), gone->end());
    } else {
      return std::nullopt;
    }
  }
  if (num_removing != 1 || num_adding != 1 || sorted(removed) != sorted(added)) return std::nullopt;
  return removed;
}

int num_parts(const Mesh& mesh, const AxisList& axes) {
  int parts = 1;
  for (const int axis : axes) parts *= mesh.axis_size(axis);
  return parts;
}

// The partial axes that `to` no longer has; nothing when it has others than `from`.
std::optional<AxisList> reduced_axes(const AxisLists& from, const AxisLists& to) {
  if (!std::includes(from.partial.begin(), from.partial.end(), to.partial.begin(), to.partial.end())) {
    return std::nullopt;
  }
  AxisList reduced;
  std::set_difference(from.partial.begin(), from.partial.end(), to.partial.begin(), to.partial.end(),
                      std::back_inserter(reduced));
  return reduced;
}

// Whether all that happens is that axes which replicate, or are the last to shard a dimension, become
// partial. Those that shard become sums, whose other ranks hold zeros.
bool becomes_partial(const AxisLists& from, const AxisLists& to, const Layout& target) {
  const std::optional<AxisList> finished = reduced_axes(to, from);
  if (!finished || finished->empty()) return false;
  const std::optional<AxisList> dropped = appended_anywhere(to.shards, from.shards);
  return dropped && std::all_of(dropped->begin(), dropped->end(), [&](int axis) {
           const auto* partial = std::get_if<Partial>(&target.placements[static_cast<std::size_t>(axis)]);
           return partial != nullptr && partial->op == ReduceOp::sum &&
                  std::find(finished->begin(), finished->end(), axis) != finished->end();
         });
}

void add_in_every_order(MoveKind kind, AxisList axes, std::vector<MoveForm>& moves) {
  std::sort(axes.begin(), axes.end());
  do {
    moves.push_back({kind, axes});
  } while (std::next_permutation(axes.begin(), axes.end()));
}

}  // namespace

std::vector<MoveForm> moves_between(const Layout& from, const Layout& to) {
  const AxisLists old_lists = axis_lists(from), new_lists = axis_lists(to);
  if (old_lists == new_lists) return {};
  if (becomes_partial(old_lists, new_lists, to)) return {{MoveKind::to_partial, {}}};
  const std::optional<AxisList> reduced = reduced_axes(old_lists, new_lists);
  if (!reduced) return {};
  const std::optional<AxisList> added = appended_anywhere(old_lists.shards, new_lists.shards);

  std::vector<MoveForm> moves;
  if (!reduced->empty()) {
    if (added && added->empty()) moves.push_back({MoveKind::all_reduce, *reduced});
    if (added && sorted(*added) == *reduced) {
      add_in_every_order(MoveKind::reduce_scatter, *reduced, moves);
      moves.push_back({MoveKind::reduce_exchange, *reduced});
    }
    return moves;
  }
  if (added) moves.push_back({MoveKind::slice, {}});
  if (const auto gathered = appended_anywhere(new_lists.shards, old_lists.shards)) {
    add_in_every_order(MoveKind::all_gather, *gathered, moves);
  }
  if (const auto moved = moved_between_dims(old_lists.shards, new_lists.shards)) {
    add_in_every_order(MoveKind::all_to_all, *moved, moves);
  }
  const bool same_parts = std::equal(
      old_lists.shards.begin(), old_lists.shards.end(), new_lists.shards.begin(),
      [&](const AxisList& a, const AxisList& b) { return num_parts(from.mesh, a) == num_parts(to.mesh, b); });
  if (same_parts) moves.push_back({MoveKind::exchange, {}});
  return moves;
}

std::optional<MoveForm> straight_move(const Layout& from, const Layout& target) {
  if (!is_legal_pair(from, target)) return std::nullopt;
  const bool same_mesh = from.mesh == target.mesh;
  const AxisLists old_lists = axis_lists(from);
  const AxisList reduced = same_mesh ? *reduced_axes(old_lists, axis_lists(target)) : old_lists.partial;
  return MoveForm{reduced.empty() ? MoveKind::exchange : MoveKind::reduce_exchange, {}};
}

bool splits_further(const Layout& layout, const Layout& target) {
  const AxisLists further = axis_lists(layout), lists = axis_lists(target);
  if (layout.mesh != target.mesh || further.partial != lists.partial) return false;
  const std::optional<AxisList> added = appended_anywhere(lists.shards, further.shards);
  return added && !added->empty();
}

}  // namespace cp::sim
