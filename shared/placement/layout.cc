#include "shared/placement/layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/placement/layout_rules.h"

namespace cp {
namespace {

const std::vector<int>& axes_of(const Layout& layout, int dim) {
  return layout.shard_axes[static_cast<std::size_t>(dim)];
}

std::int64_t size_of(const Layout& layout, int dim) { return layout.shape[static_cast<std::size_t>(dim)]; }

int num_dims(const Layout& layout) { return static_cast<int>(layout.shape.size()); }

// What some axes leave of a dimension: a plain range for as long as it is one, so that the usual shards need
// no memory, and a list from then on.
struct Rest {
  IndexRange range;
  IndexSet list;
  bool is_range = true;

  void split(const Split& split, int parts, int index) {
    if (is_range) {
      if (const std::optional<IndexRange> part = split_range(split, range, parts, index)) {
        range = *part;
        return;
      }
      list = index_range(range.begin, range.end);
      is_range = false;
    }
    list = split_part(split, list, parts, index);
  }

  std::int64_t size() const { return is_range ? range.end - range.begin : cp::size(list); }
  IndexSet take() && { return is_range ? index_range(range.begin, range.end) : std::move(list); }
};

template <class CoordinateOf>
Rest rest_of(const Layout& layout, int dim, const CoordinateOf& coordinate_of) {
  Rest rest{.range = {0, size_of(layout, dim)}, .list = {}};
  for (const int axis : axes_of(layout, dim)) {
    rest.split(split_along(layout, axis), layout.mesh.axis_size(axis), coordinate_of(axis));
  }
  return rest;
}

Rest rest_of(const Layout& layout, int dim, Rank rank) {
  return rest_of(layout, dim, [&](int axis) { return layout.mesh.coordinate(rank, axis); });
}

std::int64_t longest_shard(const Layout& layout, int dim) {
  const std::vector<int>& axes = axes_of(layout, dim);
  std::vector<int> coordinates(layout.placements.size(), 0);
  const auto advance = [&] {  // to the next coordinates along the axes, false after the last
    for (const int axis : axes) {
      int& coordinate = coordinates[static_cast<std::size_t>(axis)];
      if (++coordinate < layout.mesh.axis_size(axis)) return true;
      coordinate = 0;
    }
    return false;
  };
  std::int64_t longest = 0;
  do {
    const Rest rest =
        rest_of(layout, dim, [&](int axis) { return coordinates[static_cast<std::size_t>(axis)]; });
    longest = std::max(longest, rest.size());
  } while (advance());
  return longest;
}

// The groups of ranks whose values `op` is still to combine, in a form that does not depend on the mesh's
// axes.
std::vector<std::vector<Rank>> reducing_groups(const Layout& layout, ReduceOp op) {
  std::vector<int> axes;
  for (const int axis : partial_axes(layout)) {
    const bool matches = std::get<Partial>(layout.placements[static_cast<std::size_t>(axis)]).op == op;
    if (matches && layout.mesh.axis_size(axis) > 1) axes.push_back(axis);
  }
  if (axes.empty()) return {};
  std::vector<std::vector<Rank>> groups = layout.mesh.groups(axes);
  for (std::vector<Rank>& group : groups) std::sort(group.begin(), group.end());
  std::sort(groups.begin(), groups.end());
  return groups;
}

bool same_reductions(const Layout& a, const Layout& b) {
  constexpr std::array kOps = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
  return std::all_of(kOps.begin(), kOps.end(),
                     [&](ReduceOp op) { return reducing_groups(a, op) == reducing_groups(b, op); });
}

// The same splits along the same axes of the same mesh.
bool same_rule(const Layout& a, const Layout& b, int dim) {
  return axes_of(a, dim) == axes_of(b, dim) &&
         std::all_of(axes_of(a, dim).begin(), axes_of(a, dim).end(),
                     [&](int axis) { return split_along(a, axis) == split_along(b, axis); });
}

bool same_ranks(const Mesh& a, const Mesh& b) {
  return a.size() == b.size() &&
         std::all_of(a.ranks().begin(), a.ranks().end(), [&](Rank rank) { return b.contains(rank); });
}

}  // namespace

Layout make_layout(Mesh mesh, std::vector<Placement> placements, Shape shape, DType dtype,
                   std::vector<std::vector<int>> shard_axes) {
  const int dims = static_cast<int>(shape.size());
  check_shape(shape, dtype);
  check_count(placements, mesh);
  for (Placement& placement : placements) {
    if (auto* shard = std::get_if<Shard>(&placement)) shard->dim = resolve_dim(shard->dim, dims);
  }
  check_reductions(placements, dtype);
  std::vector<std::vector<int>> mesh_order = axes_in_mesh_order(placements, dims);
  if (shard_axes.empty()) {
    shard_axes = std::move(mesh_order);
  } else {
    check_order(shard_axes, mesh_order);
  }
  Layout layout{std::move(mesh), std::move(placements), std::move(shape), dtype, std::move(shard_axes)};
  check_splits(layout);
  return layout;
}

const Split& split_along(const Layout& layout, int axis) {
  return std::get<Shard>(layout.placements[static_cast<std::size_t>(axis)]).split;
}

IndexSet indices(const Layout& layout, int tensor_dim, Rank rank) {
  return rest_of(layout, tensor_dim, rank).take();
}

IndexSet indices_at(const Layout& layout, int tensor_dim, std::span<const int> coordinates) {
  return rest_of(layout, tensor_dim, [&](int axis) { return coordinates[static_cast<std::size_t>(axis)]; })
      .take();
}

std::vector<IndexSet> box(const Layout& layout, Rank rank) {
  std::vector<IndexSet> sets;
  sets.reserve(layout.shape.size());
  for (int dim = 0; dim < num_dims(layout); ++dim) sets.push_back(indices(layout, dim, rank));
  return sets;
}

Shape local_shape(const Layout& layout, Rank rank) {
  Shape shape;
  shape.reserve(layout.shape.size());
  for (int dim = 0; dim < num_dims(layout); ++dim) shape.push_back(rest_of(layout, dim, rank).size());
  return shape;
}

std::int64_t local_numel(const Layout& layout, Rank rank) { return numel(local_shape(layout, rank)); }

std::int64_t local_bytes(const Layout& layout, Rank rank) {
  return local_numel(layout, rank) * size_bytes(layout.dtype);
}

std::int64_t max_local_bytes(const Layout& layout) {
  // A mesh axis shards one dimension at most, so that some rank holds the longest shard of every dimension.
  std::int64_t bytes = size_bytes(layout.dtype);
  for (int dim = 0; dim < num_dims(layout); ++dim) bytes *= longest_shard(layout, dim);
  return bytes;
}

Shape global_offset(const Layout& layout, Rank rank) {
  Shape offset;
  offset.reserve(layout.shape.size());
  for (int dim = 0; dim < num_dims(layout); ++dim) {
    const IndexSet set = indices(layout, dim, rank);
    offset.push_back(set.empty() ? size_of(layout, dim) : set.front().begin);
  }
  return offset;
}

bool is_partial(const Layout& layout) {
  return std::any_of(layout.placements.begin(), layout.placements.end(),
                     [](const Placement& placement) { return std::holds_alternative<Partial>(placement); });
}

std::vector<int> partial_axes(const Layout& layout) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (std::holds_alternative<Partial>(layout.placements[axis])) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

std::optional<ReduceOp> reduction(const Layout& layout) {
  std::optional<ReduceOp> op;
  for (const Placement& placement : layout.placements) {
    const auto* partial = std::get_if<Partial>(&placement);
    if (partial != nullptr && op != ReduceOp::avg) op = partial->op;
  }
  return op;
}

bool equivalent(const Layout& a, const Layout& b) {
  if (a.shape != b.shape || a.dtype != b.dtype) return false;
  const bool same_mesh = a.mesh == b.mesh;
  if (!same_mesh && !same_ranks(a.mesh, b.mesh)) return false;
  if (!same_reductions(a, b)) return false;
  for (int dim = 0; dim < num_dims(a); ++dim) {
    if (same_mesh && same_rule(a, b, dim)) continue;
    for (const Rank rank : a.mesh.ranks()) {
      if (!same_indices(indices(a, dim, rank), indices(b, dim, rank))) return false;
    }
  }
  return true;
}

}  // namespace cp
