// A DimSpec says how one tensor dimension is split over the ranks of a mesh, and a PairTable what the parts
// of two DimSpecs share.
//
// Internal to shared/redistribute. What two parts share is computed when it is asked for, and kept if there
// are few pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/inline_list.h"
#include "shared/placement/index_set.h"

namespace cp::detail {

// Chosen: states are arrays of these sizes. A mesh of 12 such axes has at least 4,096 ranks.
inline constexpr int kMaxDims = 12;      // of a tensor that is redistributed
inline constexpr int kMaxMeshAxes = 12;  // axes with more than one rank

// One mesh axis that shards a dimension. `split` is an index into the splits of the StateSpace, of which
// there are at most one for each axis of source and target, and Chunked.
struct ShardEntry {
  std::int8_t axis = 0;
  std::int8_t split = 0;
  bool operator==(const ShardEntry&) const = default;
};
using ShardList = InlineList<ShardEntry, kMaxMeshAxes>;  // outermost first
using AxisList = InlineList<std::int8_t, kMaxMeshAxes>;
using AxisMask = std::uint32_t;  // bit i: axis i

// How one dimension is split over the ranks of one side. Its parts are numbered by the coordinates along
// `entries`, row-major.
class DimSpec {
 public:
  int side = 0, dim = 0;
  ShardList entries;
  std::int64_t degree = 1;  // number of parts
  // By position of the rank in the space; -1 for a rank outside of this side's mesh.
  std::vector<std::int32_t> part_of;
  bool even = false;    // parts are ranges of one size, in order
  bool ranges = false;  // parts are ranges, in order

  std::int64_t size(std::int32_t part) const {
    return even ? even_size_ : sizes_[static_cast<std::size_t>(part)];
  }
  std::int64_t largest() const { return largest_; }  // of the sizes
  // Where a part begins; only if the parts are ranges.
  std::int64_t begin(std::int32_t part) const {
    return even ? even_size_ * part : begins_[static_cast<std::size_t>(part)];
  }
  IndexSet part(std::int32_t part) const;

 private:
  friend class StateSpace;
  std::int64_t even_size_ = 0, largest_ = 0;
  std::vector<std::int64_t> begins_, sizes_;  // by part, unless even; begins_ only if the parts are ranges
  std::vector<IndexSet> sets_;                // by part, unless the parts are ranges
};

// What part i of one spec and part j of another share.
struct Shared {
  std::int64_t numel = 0;
  std::int64_t from_start = 0, to_start = 0;  // local positions of the first shared index
  bool contiguous = false;                    // it is one stretch in both local orders
};

// What the parts of two specs share.
class PairTable {
 public:
  // With `keeps`, the table remembers what two parts share.
  PairTable(const DimSpec& from, const DimSpec& to, bool keeps);

  const DimSpec& from() const { return from_; }
  const DimSpec& to() const { return to_; }
  Shared at(std::int32_t from, std::int32_t to) const;
  // The parts of `from` that share something with part `to` of the other, ascending.
  std::span<const std::int32_t> overlapping(std::int32_t to) const;

 private:
  void find_overlapping() const;

  const DimSpec& from_;
  const DimSpec& to_;
  // [from part][to part], numel -1 if not asked for yet; empty if nothing is kept
  mutable std::vector<Shared> known_;
  mutable std::vector<std::int64_t> first_;  // those of to part i lie at [first_[i], first_[i + 1])
  mutable std::vector<std::int32_t> overlapping_;
};

// What the boxes of two layouts share, with the specs looked up beforehand, for loops over many pairs of
// ranks. The positions must be in the meshes.
struct BoxPair {
  int num_dims = 0;
  std::array<const PairTable*, kMaxDims> dims;

  const PairTable& dim(int d) const { return *dims[static_cast<std::size_t>(d)]; }
  std::int32_t from_part(int d, std::int32_t position) const {
    return dim(d).from().part_of[static_cast<std::size_t>(position)];
  }
  std::int32_t to_part(int d, std::int32_t position) const {
    return dim(d).to().part_of[static_cast<std::size_t>(position)];
  }
  std::int64_t old_numel(std::int32_t from) const {
    std::int64_t numel = 1;
    for (int d = 0; d < num_dims; ++d) numel *= dim(d).from().size(from_part(d, from));
    return numel;
  }
  std::int64_t new_numel(std::int32_t to) const {
    std::int64_t numel = 1;
    for (int d = 0; d < num_dims; ++d) numel *= dim(d).to().size(to_part(d, to));
    return numel;
  }
  // Elements that box `from` of the old layout and box `to` of the new one share.
  std::int64_t shared_numel(std::int32_t from, std::int32_t to) const {
    std::int64_t numel = 1;
    for (int d = 0; d < num_dims && numel != 0; ++d)
      numel *= dim(d).at(from_part(d, from), to_part(d, to)).numel;
    return numel;
  }
};

}  // namespace cp::detail
