// Layout: the meaning of a distributed tensor, and what everything about it is derived from.
//
// A layout says for each mesh axis whether it shards a tensor dimension, replicates, or holds partial values
// that are still to be reduced. Contract 1: shapes, offsets, equivalence and bytes to move all come from
// indices(); there is no second formula.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"
#include "shared/base/types.h"
#include "shared/mesh/mesh.h"
#include "shared/placement/index_set.h"
#include "shared/placement/split.h"

namespace cp {

struct Shard {
  int dim = 0;
  Split split = Chunked{};
  bool operator==(const Shard&) const = default;
};
struct Replicate {
  bool operator==(const Replicate&) const = default;
};
struct Partial {
  ReduceOp op = ReduceOp::sum;
  bool operator==(const Partial&) const = default;
};
using Placement = std::variant<Shard, Replicate, Partial>;

struct Layout {
  Mesh mesh;
  std::vector<Placement> placements;  // one for each mesh axis
  Shape shape;                        // global
  DType dtype = DType::f32;
  // For each tensor dimension the mesh axes that shard it; the first one splits first (outermost).
  std::vector<std::vector<int>> shard_axes;

  bool operator==(const Layout&) const = default;
};

// A checked layout. Negative dims count from the end. `shard_axes` empty means mesh order. Throws
// InvalidInput for: a number of placements other than the number of axes, a dim out of range, an order that
// does not list exactly the sharding axes, a split that does not fit (Sized and Dealt must fit what the axes
// before leave on every rank), reductions mixed in one layout (only sum and avg go together), avg of an
// integer dtype, a negative size, a tensor of 2^63 bytes or more.
Layout make_layout(Mesh mesh, std::vector<Placement> placements, Shape shape, DType dtype,
                   std::vector<std::vector<int>> shard_axes = {});

// The text form of the placements: "S(0)[1],S(0)[0],P(sum),R". The bracket is the axis' position in the split
// order of its dimension; it is printed only where the order is not mesh order, and may be left out when
// reading (on all axes of a dimension, or on none). Negative dims are resolved against `num_dims`. Throws
// InvalidInput that quotes the text and lists what is known.
//
// What DTensor prints and takes is read too, and written in the form above: "[Shard(0), Replicate()]",
// "(Shard(dim=0), Partial())", "Partial('avg')". Partial() is a sum.
struct ParsedPlacements {
  std::vector<Placement> placements;
  std::vector<std::vector<int>> shard_axes;
};
ParsedPlacements parse_placements(std::string_view text, int num_dims);
Layout parse_layout(std::string_view placements, Mesh mesh, Shape shape, DType dtype);
std::string placements_to_string(const Layout& layout);
std::string to_string(const Layout& layout);  // with mesh, shape and dtype

// How a mesh axis splits the dimension that it shards; the axis must shard one.
const Split& split_along(const Layout& layout, int axis);

// The global indices along tensor dimension `tensor_dim` that `rank` holds, in local order; canonical.
IndexSet indices(const Layout& layout, int tensor_dim, Rank rank);
// The same for the rank at `coordinates` of the mesh, one for each axis. Axes that do not shard the dimension
// do not matter.
IndexSet indices_at(const Layout& layout, int tensor_dim, std::span<const int> coordinates);

// One rank's box: the index sets of all dimensions.
std::vector<IndexSet> box(const Layout& layout, Rank rank);
Shape local_shape(const Layout& layout, Rank rank);
std::int64_t local_numel(const Layout& layout, Rank rank);
std::int64_t local_bytes(const Layout& layout, Rank rank);
std::int64_t max_local_bytes(const Layout& layout);  // over all ranks

// First global index held along each dimension; an empty shard's offset is the global size (PyTorch's
// convention).
Shape global_offset(const Layout& layout, Rank rank);

bool is_partial(const Layout& layout);
// The axes with a Partial placement, in mesh order.
std::vector<int> partial_axes(const Layout& layout);
// Their reduction: avg where any is avg and the others are sum; none when there are none. The axes' own
// reductions are in their placements.
std::optional<ReduceOp> reduction(const Layout& layout);

// The tensors have the same shape and dtype, every rank holds the same indices in the same local order, and
// the same groups of ranks hold partial values with the same reductions: moving from one to the other needs
// no step. The meshes may differ (nested against flattened axes), but not in their ranks. An axis of size 1
// is not partial in this sense: there is nothing to reduce.
bool equivalent(const Layout& a, const Layout& b);

Hasher& hash(Hasher& hasher, const Layout& layout);

}  // namespace cp
