// A StateSpace holds the layouts through which a redistribution may pass, as small integers, and what their
// index sets share.
//
// Internal to shared/redistribute. A layout along one tensor dimension is a DimSpec: the ordered mesh axes
// that shard it, with their splits. Specs are interned. Their parts are computed once, and what parts of two
// specs share is computed when it is asked for; so a search over many layouts of many ranks pays only for
// what it looks at. Everything is derived from split_part() and intersect() (contract 1).
//
// Mesh axes of size 1 do not exist here, since Shard and Replicate over one rank are the same index map. An
// axis is numbered among those of more than one rank, slowest first; mesh_axis() gives its number in the
// mesh.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/redistribute/dim_spec.h"

namespace cp::detail {

// A layout: on which side's mesh it is, which spec each dimension has, and which axes are partial.
struct State {
  std::int32_t side = 0;
  AxisMask partial = 0;
  std::array<std::int32_t, kMaxDims> spec{};
  bool operator==(const State&) const = default;
};
struct StateHash {
  std::size_t operator()(const State& state) const noexcept;
};

class StateSpace {
 public:
  // Side 0 is the source's mesh, side 1 the target's if it is another mesh. layout_of() gives layouts of
  // `dtype`. Throws InvalidInput if there are more dimensions or axes than kMaxDims and kMaxMeshAxes.
  StateSpace(const Layout& source, const Layout& target, DType dtype);

  int num_dims() const { return num_dims_; }
  int num_sides() const { return static_cast<int>(sides_.size()); }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }  // of both meshes together
  Rank rank(int position) const { return ranks_[static_cast<std::size_t>(position)]; }
  int position(Rank rank) const;  // -1 if the rank is in neither mesh
  const Mesh& mesh(int side) const { return sides_[static_cast<std::size_t>(side)].mesh; }

  int num_axes(int side) const {
    return static_cast<int>(sides_[static_cast<std::size_t>(side)].sizes.size());
  }
  const AxisList& axes(int side) const { return sides_[static_cast<std::size_t>(side)].axes; }  // 0, 1, ...
  int axis_size(int side, int axis) const {
    return sides_[static_cast<std::size_t>(side)].sizes[static_cast<std::size_t>(axis)];
  }
  int mesh_axis(int side, int axis) const {
    return sides_[static_cast<std::size_t>(side)].mesh_axes[static_cast<std::size_t>(axis)];
  }
  // Translates axes of a side's mesh from their numbers there, leaving out those of one rank; and back.
  AxisList axes_of(int side, std::span<const int> mesh_axes) const;
  std::vector<int> mesh_axes(int side, const AxisList& axes) const;

  int coordinate(int side, int position, int axis) const {  // position must be in the side's mesh
    const Side& s = sides_[static_cast<std::size_t>(side)];
    return s.mesh_index[static_cast<std::size_t>(position)] / s.strides[static_cast<std::size_t>(axis)] %
           s.sizes[static_cast<std::size_t>(axis)];
  }
  bool in_side(int side, int position) const {
    return sides_[static_cast<std::size_t>(side)].mesh_index[static_cast<std::size_t>(position)] >= 0;
  }
  // The positions of the ranks that differ from `position` only along `axes`; the last axis varies fastest.
  void members(int side, int position, const AxisList& axes, std::vector<std::int32_t>& out) const;
  // moved_to_first() gives the first of these positions.
  std::int32_t moved_to_first(int side, int position, const AxisList& axes) const;
  // The position with the coordinates of `other` along `axes` and those of `position` along all others.
  std::int32_t moved_beside(int side, int position, int other, const AxisList& axes) const;
  // The next position along an axis, which must not be the last one.
  std::int32_t neighbour(int side, int position, int axis) const {
    const Side& s = sides_[static_cast<std::size_t>(side)];
    const std::int32_t index = s.mesh_index[static_cast<std::size_t>(position)];
    return s.positions[static_cast<std::size_t>(index + s.strides[static_cast<std::size_t>(axis)])];
  }
  // Whether all coordinates of the position along `axes` are 0, which is so for one position of each group.
  bool leads(int side, int position, const AxisList& axes) const;

  // The splits that intermediate layouts may use for a dimension: those of the source and the target, or else
  // Chunked.
  const std::vector<std::int8_t>& splits_for(int dim) const {
    return dim_splits_[static_cast<std::size_t>(dim)];
  }
  // Whether the source or the target shards this dimension.
  bool sharded_in_request(int dim) const { return request_shards_[static_cast<std::size_t>(dim)]; }

  // The interned spec of these entries; -1 if a split cannot be used there.
  int intern(int side, int dim, const ShardList& entries);
  const DimSpec& spec(int id) const { return *specs_[static_cast<std::size_t>(id)]; }
  const DimSpec& spec(const State& state, int dim) const {
    return spec(state.spec[static_cast<std::size_t>(dim)]);
  }
  BoxPair boxes(const State& from, const State& to);

  State state_of(const Layout& layout, int side);
  Layout layout_of(const State& state) const;
  const State& source() const { return source_; }
  const State& target() const { return target_; }
  ReduceOp reduction(int side, int axis) const;

  std::int64_t numel(const State& state, int position) const;
  std::int64_t largest_numel(const State& state) const;  // the largest over the ranks
  std::int64_t global_numel() const { return cp::numel(shape_); }
  // Whether all parts of all dimensions have equal sizes, so that every rank of the mesh does the same in a
  // collective.
  bool is_even(const State& state) const;
  // Whether every rank has the same box in the same local order, and the same axes are partial.
  bool equivalent(const State& a, const State& b);

 private:
  struct Side {
    Mesh mesh;
    AxisList axes;
    std::vector<int> mesh_axes;            // by axis: its number in the mesh
    std::vector<std::int32_t> strides;     // by axis, in mesh indices
    std::vector<std::int32_t> sizes;       // by axis
    std::vector<std::int32_t> positions;   // mesh index → position
    std::vector<std::int32_t> mesh_index;  // position → mesh index, -1 outside
    std::vector<Placement> placements;     // of the request's layout, by axis: where Partial ops come from
  };
  void add_side(const Layout& layout);
  void add_splits(const Layout& layout);
  bool usable(int side, int dim, const ShardList& entries) const;
  void fill_parts(DimSpec& spec, int parent);
  void fill_even(DimSpec& spec, const DimSpec& outer, const ShardEntry& entry) const;

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
  // [side][dim]: the shard lists of source and target, for prefixes with Sized.
  std::vector<std::vector<ShardList>> request_lists_[2];
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
  std::unordered_map<std::uint64_t, std::unique_ptr<PairTable>> pairs_;  // by both specs
  std::int64_t kept_pairs_ = 0;                                          // of parts, in all tables
  State source_, target_;
};

}  // namespace cp::detail
