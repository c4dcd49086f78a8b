#include "shared/placement/layout_rules.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

// Calls f(list) for each list that axes[0 .. depth) can leave of `list`.
template <class F>
void for_each_rest(const Layout& layout, const std::vector<int>& axes, std::size_t depth,
                   const IndexSet& list, std::size_t from, const F& f) {
  if (from == depth) return f(list);
  const int parts = layout.mesh.axis_size(axes[from]);
  for (int index = 0; index < parts; ++index) {
    for_each_rest(layout, axes, depth, split_part(split_along(layout, axes[from]), list, parts, index),
                  from + 1, f);
  }
}

void check_splits_of(const Layout& layout, std::size_t dim) {
  const std::vector<int>& axes = layout.shard_axes[dim];
  const std::int64_t dim_size = layout.shape[dim];
  for (std::size_t depth = 0; depth < axes.size(); ++depth) {
    const Split& split = split_along(layout, axes[depth]);
    const int parts = layout.mesh.axis_size(axes[depth]);
    try {
      if (depth > 0 && fits_one_length(split)) {
        for_each_rest(layout, axes, depth, index_range(0, dim_size), 0,
                      [&](const IndexSet& rest) { validate_split(split, rest, dim_size, parts); });
      } else {
        validate_split(split, index_range(0, dim_size), dim_size, parts);
      }
    } catch (const InvalidInput& error) {
      const std::string& name = layout.mesh.axes()[static_cast<std::size_t>(axes[depth])].name;
      throw InvalidInput(str("axis ", name, " cannot shard ", depth > 0 ? "what earlier axes leave of " : "",
                             "dimension ", dim, " of size ", dim_size, ": ", error.what()));
    }
  }
}

}  // namespace

int resolve_dim(std::int64_t dim, int num_dims) {
  if (num_dims == 0)
    throw InvalidInput(str("S(", dim, ") shards a scalar, which has no dimensions; use R or P(op)"));
  if (dim < -num_dims || dim >= num_dims) {
    throw InvalidInput(str("dimension ", dim, " is out of range for a tensor of ", num_dims,
                           " dimensions; use ", -num_dims, " .. ", num_dims - 1));
  }
  return static_cast<int>(dim < 0 ? dim + num_dims : dim);
}

void check_shape(const Shape& shape, DType dtype) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max() / size_bytes(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0) throw InvalidInput(str("the shape ", join(shape, "x"), " has a negative size"));
    left /= std::max<std::int64_t>(size, 1);  // a dimension of size 0 must not hide others that are too large
  }
  if (left == 0) {
    throw InvalidInput(str("a tensor of shape ", join(shape, "x"), " and dtype ", name(dtype),
                           " has 2^63 bytes or more; byte counts are 64-bit"));
  }
}

void check_count(const std::vector<Placement>& placements, const Mesh& mesh) {
  if (placements.size() == static_cast<std::size_t>(mesh.num_axes())) return;
  throw InvalidInput(str(placements.size(), " placements for the ", mesh.num_axes(), " axes of the mesh ",
                         mesh.to_string(), "; give one for each axis"));
}

void check_reductions(const std::vector<Placement>& placements, DType dtype) {
  const auto adds = [](ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg; };
  const Partial* first = nullptr;
  for (const Placement& placement : placements) {
    const auto* partial = std::get_if<Partial>(&placement);
    if (partial == nullptr) continue;
    if (partial->op == ReduceOp::avg && !is_floating(dtype)) {
      throw InvalidInput(str("P(avg) of ", name(dtype), " would round; use P(sum), or a floating dtype"));
    }
    if (first == nullptr) first = partial;
    if (partial->op != first->op && !(adds(partial->op) && adds(first->op))) {
      throw InvalidInput(
          str("P(", name(first->op), ") and P(", name(partial->op),
              ") in one layout: their result would depend on which is reduced first; only sum and "
              "avg go together"));
    }
  }
}

std::vector<std::vector<int>> axes_in_mesh_order(const std::vector<Placement>& placements, int num_dims) {
  std::vector<std::vector<int>> axes(static_cast<std::size_t>(num_dims));
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (const auto* shard = std::get_if<Shard>(&placements[axis])) {
      axes[static_cast<std::size_t>(shard->dim)].push_back(static_cast<int>(axis));
    }
  }
  return axes;
}

void check_order(const std::vector<std::vector<int>>& order,
                 const std::vector<std::vector<int>>& mesh_order) {
  if (order.size() != mesh_order.size()) {
    throw InvalidInput(str("an order of mesh axes for ", order.size(), " dimensions, but the tensor has ",
                           mesh_order.size(),
                           "; give one list for each dimension, and an empty one if no axis shards it"));
  }
  for (std::size_t dim = 0; dim < order.size(); ++dim) {
    if (std::is_permutation(order[dim].begin(), order[dim].end(), mesh_order[dim].begin(),
                            mesh_order[dim].end())) {
      continue;
    }
    throw InvalidInput(str("the order of mesh axes for dimension ", dim, " is {", join(order[dim]),
                           "}, but the axes that shard it are {", join(mesh_order[dim]),
                           "}; list each of them once"));
  }
}

void check_splits(const Layout& layout) {
  for (std::size_t dim = 0; dim < layout.shape.size(); ++dim) check_splits_of(layout, dim);
}

}  // namespace cp
