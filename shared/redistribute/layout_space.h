// LayoutSpace: the layouts that a redistribution may pass through, as small integers, and what their index
// sets share.
//
// Internal to shared/redistribute. A layout along one tensor dimension is a DimSpec: the ordered mesh axes
// that shard it with their splits. Specs are interned, their index sets and pairwise overlaps computed once
// and looked up afterwards, so that a search over thousands of layouts never computes the same set twice.
// Everything is derived from split_part() and intersect().
//
// Mesh axes of size 1 do not exist here: Shard and Replicate over one rank are the same index map.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shared/base/inline_list.h"
#include "shared/placement/layout.h"

namespace cp::detail {

inline constexpr int kMaxDims = 12;      // of a tensor that is redistributed
inline constexpr int kMaxMeshAxes = 12;  // with more than one rank

// One mesh axis that shards a dimension; `split` indexes LayoutSpace::splits.
struct ShardEntry {
  std::int8_t axis = 0;
  std::int8_t split = 0;
  bool operator==(const ShardEntry&) const = default;
};
using ShardList = InlineList<ShardEntry, kMaxMeshAxes>;  // outermost first
using AxisList = InlineList<std::int8_t, kMaxMeshAxes>;

struct DimSpec {
  int side = 0, dim = 0;
  ShardList entries;
  std::vector<IndexSet> parts;        // by the coordinates along `entries`, row-major
  std::vector<std::int64_t> sizes;    // of the parts
  std::vector<std::int32_t> part_of;  // by position of the rank in the space; -1: outside of this side's mesh
  bool even = false;                  // all entries Chunked, all parts of one size
  std::int64_t degree = 1;            // number of parts
};

// What part i of one spec and part j of another share.
struct Shared {
  std::int64_t numel = 0;
  std::int64_t from_start = 0, to_start = 0;  // local position of the first shared index
  bool contiguous = false;                    // one stretch, in both local orders
};

struct PairTable {
  std::int32_t to_parts = 0;
  std::vector<Shared> shared;  // [from part][to part]
  // The from parts that share something with each to part: those of to part i lie at [first[i], first[i + 1]).
  std::vector<std::int32_t> first, overlapping;
  const Shared& at(std::int32_t from, std::int32_t to) const {
    return shared[static_cast<std::size_t>(from * to_parts + to)];
  }
};

// What the boxes of two layouts share, with all look-ups done: for loops over many pairs of ranks.
struct BoxPair {
  struct Dim {
    const PairTable* table;
    const std::int32_t *from_part, *to_part;    // by position
    const std::int64_t *from_sizes, *to_sizes;  // by part
  };
  int num_dims = 0;
  std::array<Dim, kMaxDims> dims;

  std::int64_t old_numel(std::int32_t from) const {
    std::int64_t numel = 1;
    for (int d = 0; d < num_dims; ++d) {
      const Dim& dim = dims[static_cast<std::size_t>(d)];
      numel *= dim.from_sizes[dim.from_part[from]];
    }
    return numel;
  }
  std::int64_t new_numel(std::int32_t to) const {
    std::int64_t numel = 1;
    for (int d = 0; d < num_dims; ++d) {
      const Dim& dim = dims[static_cast<std::size_t>(d)];
      numel *= dim.to_sizes[dim.to_part[to]];
    }
    return numel;
  }
  // Elements that box `from` of the old layout and box `to` of the new one share; both positions in their meshes.
  std::int64_t shared_numel(std::int32_t from, std::int32_t to) const {
    std::int64_t numel = 1;
    for (int d = 0; d < num_dims && numel != 0; ++d) {
      const Dim& dim = dims[static_cast<std::size_t>(d)];
      numel *= dim.table->at(dim.from_part[from], dim.to_part[to]).numel;
    }
    return numel;
  }
};

// A layout: which side's mesh, which spec each dimension has, which axes are partial (a mask of axes).
struct State {
  std::int8_t side = 0;
  std::uint16_t partial = 0;
  std::array<std::int16_t, kMaxDims> spec{};
  bool operator==(const State&) const = default;
};
struct StateHash {
  std::size_t operator()(const State& state) const noexcept;
};

class LayoutSpace {
 public:
  // Side 0 is the source's mesh; side 1 the target's, when it is another mesh. layout_of() gives layouts of
  // `dtype`.
  LayoutSpace(const Layout& source, const Layout& target, DType dtype);

  int num_dims() const { return num_dims_; }
  int num_sides() const { return static_cast<int>(sides_.size()); }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }  // of both meshes together
  Rank rank(int position) const { return ranks_[static_cast<std::size_t>(position)]; }
  int position(Rank rank) const;  // -1 for a stranger
  const Mesh& mesh(int side) const { return sides_[static_cast<std::size_t>(side)].mesh; }

  // The axes of a side with more than one rank, as axis numbers of its mesh.
  const AxisList& axes(int side) const { return sides_[static_cast<std::size_t>(side)].axes; }
  int axis_size(int side, int axis) const {
    return sides_[static_cast<std::size_t>(side)].sizes[static_cast<std::size_t>(axis)];
  }
  int coordinate(int side, int position, int axis) const {  // -1 outside of the side's mesh
    const Side& s = sides_[static_cast<std::size_t>(side)];
    return s
        .coordinates[static_cast<std::size_t>(position) * s.sizes.size() + static_cast<std::size_t>(axis)];
  }
  bool in_side(int side, int position) const {
    return sides_[static_cast<std::size_t>(side)].mesh_index[static_cast<std::size_t>(position)] >= 0;
  }
  // The ranks (positions) that differ from `position` only along `axes`, the last axis fastest.
  void members(int side, int position, std::span<const std::int8_t> axes,
               std::vector<std::int32_t>& out) const;

  // Splits that intermediate layouts may use for a dimension: those of the source and the target, else
  // Chunked.
  const std::vector<std::int8_t>& splits_for(int dim) const {
    return dim_splits_[static_cast<std::size_t>(dim)];
  }
  // Whether source or target shard this dimension.
  bool sharded_in_request(int dim) const { return request_shards_[static_cast<std::size_t>(dim)]; }

  // The spec of these entries, interned; -1 when a split cannot be used there.
  int intern(int side, int dim, const ShardList& entries);
  const DimSpec& spec(int id) const { return *specs_[static_cast<std::size_t>(id)]; }
  const DimSpec& spec(const State& state, int dim) const {
    return spec(state.spec[static_cast<std::size_t>(dim)]);
  }
  const PairTable& pair(int from_spec, int to_spec);
  BoxPair boxes(const State& from, const State& to);

  State state_of(const Layout& layout, int side);
  Layout layout_of(const State& state) const;
  const State& source() const { return source_; }
  const State& target() const { return target_; }
  ReduceOp reduction(int side, int axis) const;

  std::int64_t numel(const State& state, int position) const;
  std::int64_t global_numel() const { return cp::numel(shape_); }
  // All parts of all dimensions have equal sizes, so that every rank of the mesh does the same in a
  // collective.
  bool is_even(const State& state) const;
  // The same boxes in the same local order on every rank, and the same partial axes.
  bool equivalent(const State& a, const State& b);

 private:
  struct Side {
    Mesh mesh;
    AxisList axes;
    std::vector<std::int32_t> positions;    // mesh index → position
    std::vector<std::int32_t> strides;      // by axis, in mesh indices
    std::vector<std::int32_t> sizes;        // by axis
    std::vector<std::int32_t> coordinates;  // [position][axis], -1 outside
    std::vector<std::int32_t> mesh_index;   // position → mesh index, -1 outside
    std::vector<Placement> placements;  // of the request's layout on this side: where Partial ops come from
  };
  void add_side(const Layout& layout);
  void add_splits(const Layout& layout);
  bool usable(int side, int dim, const ShardList& entries) const;
  void fill_parts(DimSpec& spec, int parent);

  int num_dims_ = 0;
  Shape shape_;
  DType dtype_;
  std::vector<Rank> ranks_;
  std::unordered_map<Rank, std::int32_t> position_of_;
  bool identity_ranks_ = true;
  std::vector<Side> sides_;
  std::vector<Split> splits_;
  std::vector<std::vector<std::int8_t>> dim_splits_;
  std::vector<bool> request_shards_;
  std::vector<std::vector<ShardList>>
      request_lists_[2];  // [side][dim]: lists of source and target, for Sized prefixes
  struct SpecKey {
    std::int8_t side, dim;
    ShardList entries;
    bool operator==(const SpecKey&) const = default;
  };
  struct SpecKeyHash {
    std::size_t operator()(const SpecKey& key) const noexcept;
  };
  std::vector<std::unique_ptr<DimSpec>> specs_;
  std::unordered_map<SpecKey, std::int32_t, SpecKeyHash> spec_index_;
  std::vector<std::vector<std::unique_ptr<PairTable>>> pairs_;  // [from spec][to spec], made on demand
  State source_, target_;
};

}  // namespace cp::detail
