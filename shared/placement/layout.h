// A Layout says how a global tensor lies over the ranks of a mesh. For each axis of the mesh it says one of
// three things: the axis shards a tensor dimension (Shard), its ranks hold copies (Replicate), or its ranks
// hold partial values that are still to be reduced (Partial). These are the placements of PyTorch's DTensor,
// with more ways to split a dimension (split.h).
//
// For example, parse_layout("S(0),R", Mesh::parse("dp=2,tp=2"), {8, 4}, DType::f32) gives ranks 0 and 1 the
// rows 0..3, and ranks 2 and 3 the rows 4..7.
//
// Everything else follows from indices(), which says what a rank holds: shapes, offsets, equivalence, and the
// bytes that have to move. There is no second formula for any of them (contract 1).
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
  std::vector<Placement> placements;  // one for each mesh axis, in the order of the axes
  Shape shape;                        // global
  DType dtype = DType::f32;
  // For each tensor dimension the mesh axes that shard it, outermost first: the first axis splits the
  // dimension, the second splits what the first left, and so on.
  std::vector<std::vector<int>> shard_axes;

  bool operator==(const Layout&) const = default;
};

// Makes a layout and checks it; the functions below expect one made here. Dims may be negative and then count
// from the end. If `shard_axes` is empty, the axes split in mesh order.
//
// Throws InvalidInput if
//   - there is not one placement for each axis, or a dim is out of range;
//   - `shard_axes` does not list, for each dimension, exactly the axes that shard it;
//   - a split does not fit: Sized and Dealt must fit what the axes before them leave, on every rank;
//   - different reductions meet (only sum and avg may), or avg is asked of an integer dtype;
//   - a size is negative, or the tensor has 2^63 bytes or more.
Layout make_layout(Mesh mesh, std::vector<Placement> placements, Shape shape, DType dtype,
                   std::vector<std::vector<int>> shard_axes = {});

// Reads the text form of placements, one for each mesh axis: "S(0)[1],S(0)[0],P(sum),R". The bracket is the
// position of the axis among those that split the same dimension: here the second mesh axis splits dimension
// 0 first. placements_to_string() prints brackets only if the order is not mesh order. When reading, they may
// be left out on all axes of a dimension or on none. Negative dims count from the end of `num_dims`. Throws
// InvalidInput that quotes the text and lists what is known.
//
// What DTensor prints is read, too, but written in the form above: "[Shard(0), Replicate()]", "(Shard(dim=0),
// Partial())", "Partial('avg')". Partial() means a sum, as it does there.
struct ParsedPlacements {
  std::vector<Placement> placements;
  std::vector<std::vector<int>> shard_axes;
};
ParsedPlacements parse_placements(std::string_view text, int num_dims);
Layout parse_layout(std::string_view placements, Mesh mesh, Shape shape, DType dtype);
std::string placements_to_string(const Layout& layout);
std::string to_string(const Layout& layout);  // with mesh, shape and dtype

// The split by which a mesh axis divides its dimension. The axis must be one that shards.
const Split& split_along(const Layout& layout, int axis);

// The global indices along dimension `tensor_dim` that `rank` holds, in local order, in canonical form.
IndexSet indices(const Layout& layout, int tensor_dim, Rank rank);
// The same for the rank at `coordinates`, one for each mesh axis. The coordinates of axes that do not shard
// this dimension do not matter.
IndexSet indices_at(const Layout& layout, int tensor_dim, std::span<const int> coordinates);

// What one rank holds, as one index set for each dimension; its elements are all combinations of these
// indices.
std::vector<IndexSet> box(const Layout& layout, Rank rank);
Shape local_shape(const Layout& layout, Rank rank);
std::int64_t local_numel(const Layout& layout, Rank rank);
std::int64_t local_bytes(const Layout& layout, Rank rank);
std::int64_t max_local_bytes(const Layout& layout);  // over all ranks

// The first global index that the rank holds along each dimension. If the rank holds none, the offset is the
// size of the dimension (PyTorch's convention).
Shape global_offset(const Layout& layout, Rank rank);

bool is_partial(const Layout& layout);
// The axes whose placement is Partial, in mesh order.
std::vector<int> partial_axes(const Layout& layout);
// The one reduction of all partial axes together: avg if any of them is avg and the others are sum; nothing
// if no axis is partial. The reduction of a single axis is in its placement.
std::optional<ReduceOp> reduction(const Layout& layout);

// True if moving from one layout to the other needs no step: the tensors have the same shape and dtype, every
// rank holds the same indices in the same local order, and the same groups of ranks hold partial values of
// the same reductions. The meshes may differ in their axes (two nested axes against one flattened axis) but
// not in their ranks. A Partial over an axis of size 1 does not count, since there is nothing to reduce.
bool equivalent(const Layout& a, const Layout& b);

Hasher& hash(Hasher& hasher, const Layout& layout);

}  // namespace cp
