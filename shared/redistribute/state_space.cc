#include "shared/redistribute/state_space.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp::detail {
namespace {

// What two parts share is remembered for at most this many pairs of parts (32 MiB in all); beyond it is found
// each time.
constexpr std::int64_t kKeptPairs = 1 << 20;

}  // namespace

std::size_t StateHash::operator()(const State& state) const noexcept {
  // Multiplied by 2^64 / the golden ratio, as in Fibonacci hashing: the ids of specs are small and close
  // together, and this spreads them over all bits.
  std::uint64_t hash =
      (static_cast<std::uint64_t>(state.partial) << 8) ^ static_cast<std::uint64_t>(state.side);
  for (const std::int32_t spec : state.spec) {
    hash = (hash ^ static_cast<std::uint64_t>(spec)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

std::size_t StateSpace::SpecKeyHash::operator()(const SpecKey& key) const noexcept {
  // FNV-1 with its 64-bit prime, over entries instead of bytes.
  std::uint64_t hash = static_cast<std::uint64_t>(key.side) << 8 | static_cast<std::uint64_t>(key.dim);
  for (const ShardEntry& entry : key.entries) {
    hash = (hash * 0x100000001b3) ^ static_cast<std::uint64_t>(entry.axis * 64 + entry.split + 1);
  }
  return hash;
}

StateSpace::StateSpace(const Layout& source, const Layout& target, DType dtype)
    : num_dims_(static_cast<int>(source.shape.size())), shape_(source.shape), dtype_(dtype) {
  if (num_dims_ > kMaxDims) {
    throw InvalidInput(str("a tensor with ", num_dims_,
                           " dimensions cannot be redistributed; merge dimensions that no axis "
                           "shards until at most ",
                           kMaxDims, " are left"));
  }
  dim_splits_.resize(idx(num_dims_));
  request_shards_.assign(idx(num_dims_), false);
  add_side(source);
  const bool one_mesh = source.mesh == target.mesh;
  if (!one_mesh) add_side(target);
  for (auto& lists : request_lists_) lists.assign(idx(num_dims_), {});
  add_splits(source);
  add_splits(target);
  for (std::vector<std::int8_t>& splits : dim_splits_) {
    if (!splits.empty()) continue;
    const auto chunked = std::find(splits_.begin(), splits_.end(), Split{Chunked{}});
    splits.push_back(static_cast<std::int8_t>(chunked - splits_.begin()));
    if (chunked == splits_.end()) splits_.emplace_back(Chunked{});
  }
  source_ = state_of(source, 0);
  target_ = state_of(target, one_mesh ? 0 : 1);
  if (one_mesh) {  // an axis may be Partial in either layout
    Side& side = sides_[0];
    for (const std::int8_t axis : side.axes) {
      const Placement& placement = target.placements[idx(side.mesh_axes[idx(axis)])];
      if (std::holds_alternative<Partial>(placement)) side.placements[idx(axis)] = placement;
    }
  }
}

void StateSpace::add_side(const Layout& layout) {
  Side side{layout.mesh, {}, {}, {}, {}, {}, {}, {}};
  // Axes of one rank split nothing and would only multiply the layouts to search, so that they are left out;
  // layout_of() puts them back.
  std::int32_t stride = 1;
  for (int axis = layout.mesh.num_axes() - 1; axis >= 0; --axis) {
    if (layout.mesh.axis_size(axis) == 1) continue;
    side.mesh_axes.insert(side.mesh_axes.begin(), axis);
    side.strides.insert(side.strides.begin(), stride);
    side.sizes.insert(side.sizes.begin(), layout.mesh.axis_size(axis));
    side.placements.insert(side.placements.begin(), layout.placements[idx(axis)]);
    stride *= layout.mesh.axis_size(axis);
  }
  if (side.sizes.size() > kMaxMeshAxes) {
    throw InvalidInput(str("mesh ", layout.mesh.to_string(), " has ", side.sizes.size(),
                           " axes of more than one rank; flatten ",
                           "axes that are used together until at most ", kMaxMeshAxes, " are left"));
  }
  for (std::size_t axis = 0; axis < side.sizes.size(); ++axis)
    side.axes.push_back(static_cast<std::int8_t>(axis));
  const std::vector<Rank>& ranks = layout.mesh.ranks();
  side.positions.reserve(ranks.size());
  // Every rank of either mesh gets a position, so that tables about ranks are arrays. The first mesh's ranks
  // come in mesh order: a position there is the index in the mesh.
  if (sides_.empty()) {
    ranks_ = ranks;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      side.positions.push_back(static_cast<std::int32_t>(i));
      identity_ranks_ = identity_ranks_ && ranks[i] == static_cast<Rank>(i);
    }
  } else {
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      position_of_.emplace(ranks_[i], static_cast<std::int32_t>(i));
    identity_ranks_ = false;
    for (const Rank rank : ranks) {
      const auto [place, added] = position_of_.emplace(rank, static_cast<std::int32_t>(ranks_.size()));
      if (added) ranks_.push_back(rank);
      side.positions.push_back(place->second);
    }
  }
  sides_.push_back(std::move(side));
  // The second mesh may have added ranks, so both sides are numbered again.
  for (Side& known : sides_) {
    known.mesh_index.assign(ranks_.size(), -1);
    for (std::size_t i = 0; i < known.positions.size(); ++i)
      known.mesh_index[idx(known.positions[i])] = static_cast<std::int32_t>(i);
  }
  if (sides_.size() == 1 && !identity_ranks_) {
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      position_of_.emplace(ranks_[i], static_cast<std::int32_t>(i));
  }
}

void StateSpace::add_splits(const Layout& layout) {
  for (std::size_t dim = 0; dim < layout.shard_axes.size(); ++dim) {
    for (const int axis : layout.shard_axes[dim]) {
      if (layout.mesh.axis_size(axis) == 1) continue;
      request_shards_[dim] = true;
      const Split& split = std::get<Shard>(layout.placements[idx(axis)]).split;
      auto known = std::find(splits_.begin(), splits_.end(), split);
      if (known == splits_.end()) known = splits_.insert(splits_.end(), split);
      const auto id = static_cast<std::int8_t>(known - splits_.begin());
      std::vector<std::int8_t>& allowed = dim_splits_[dim];
      if (std::find(allowed.begin(), allowed.end(), id) == allowed.end()) allowed.push_back(id);
    }
  }
}

int StateSpace::position(Rank rank) const {
  if (identity_ranks_) return rank >= 0 && rank < num_ranks() ? rank : -1;
  const auto found = position_of_.find(rank);
  return found == position_of_.end() ? -1 : found->second;
}

AxisList StateSpace::axes_of(int side, std::span<const int> mesh_axes) const {
  const std::vector<int>& known = sides_[idx(side)].mesh_axes;
  AxisList axes;
  for (const int axis : mesh_axes) {
    const auto found = std::find(known.begin(), known.end(), axis);
    if (found != known.end()) axes.push_back(static_cast<std::int8_t>(found - known.begin()));
  }
  return axes;
}

std::vector<int> StateSpace::mesh_axes(int side, const AxisList& axes) const {
  std::vector<int> numbers;
  for (const std::int8_t axis : axes) numbers.push_back(mesh_axis(side, axis));
  return numbers;
}

std::int32_t StateSpace::moved_to_first(int side, int position, const AxisList& axes) const {
  const Side& s = sides_[idx(side)];
  std::int32_t index = s.mesh_index[idx(position)];
  for (const std::int8_t axis : axes) index -= coordinate(side, position, axis) * s.strides[idx(axis)];
  return s.positions[idx(index)];
}

std::int32_t StateSpace::moved_beside(int side, int position, int other, const AxisList& axes) const {
  const Side& s = sides_[idx(side)];
  std::int32_t index = s.mesh_index[idx(position)];
  for (const std::int8_t axis : axes)
    index += (coordinate(side, other, axis) - coordinate(side, position, axis)) * s.strides[idx(axis)];
  return s.positions[idx(index)];
}

void StateSpace::members(int side, int position, const AxisList& axes, std::vector<std::int32_t>& out) const {
  const Side& s = sides_[idx(side)];
  std::int32_t base = s.mesh_index[idx(position)];
  std::size_t total = 1;
  for (const std::int8_t axis : axes) {
    base -= coordinate(side, position, axis) * s.strides[idx(axis)];
    total *= idx(s.sizes[idx(axis)]);
  }
  out.clear();
  out.reserve(total);
  out.push_back(base);
  for (const std::int8_t axis : axes) {
    const std::size_t known = out.size();
    const int size = s.sizes[idx(axis)];
    out.resize(known * idx(size));
    for (std::size_t i = known; i-- > 0;) {
      for (int c = size - 1; c >= 0; --c) out[i * idx(size) + idx(c)] = out[i] + c * s.strides[idx(axis)];
    }
  }
  for (std::int32_t& index : out) index = s.positions[idx(index)];
}

bool StateSpace::leads(int side, int position, const AxisList& axes) const {
  return std::all_of(axes.begin(), axes.end(),
                     [&](std::int8_t axis) { return coordinate(side, position, axis) == 0; });
}

bool StateSpace::usable(int side, int dim, const ShardList& entries) const {
  const bool has_sized = std::any_of(entries.begin(), entries.end(), [&](const ShardEntry& entry) {
    return fits_one_length(splits_[idx(entry.split)]);
  });
  if (!has_sized) return true;
  // Explicit sizes fit just where the request wrote them: behind the same outer axes.
  std::size_t last_sized = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (fits_one_length(splits_[idx(entries[i].split)])) last_sized = i;
  }
  for (const ShardList& list : request_lists_[side][idx(dim)]) {
    if (list.size() > last_sized &&
        std::equal(entries.begin(), entries.begin() + last_sized + 1, list.begin())) {
      return true;
    }
  }
  return false;
}

int StateSpace::intern(int side, int dim, const ShardList& entries) {
  const SpecKey key{static_cast<std::int8_t>(side), static_cast<std::int8_t>(dim), entries};
  // Interned: equal specs have equal ids, so that layouts compare and hash as small integers.
  const auto known = spec_index_.find(key);
  if (known != spec_index_.end()) return known->second;
  if (!usable(side, dim, entries)) return -1;
  int parent = -1;
  if (!entries.empty()) parent = intern(side, dim, ShardList(entries.begin(), entries.end() - 1));
  auto spec = std::make_unique<DimSpec>();
  spec->side = side;
  spec->dim = dim;
  spec->entries = entries;
  fill_parts(*spec, parent);
  const auto id = static_cast<std::int32_t>(specs_.size());
  specs_.push_back(std::move(spec));
  spec_index_.emplace(key, id);
  return id;
}

// Plain chunks of a length that they divide, behind such chunks.
void StateSpace::fill_even(DimSpec& spec, const DimSpec& outer, const ShardEntry& entry) const {
  const Split& split = splits_[idx(entry.split)];
  const bool plain = std::holds_alternative<Chunked>(split) || std::holds_alternative<Balanced>(split);
  if (!outer.even || !plain || outer.even_size_ % (spec.degree / outer.degree) != 0) return;
  spec.even = spec.ranges = true;
  spec.even_size_ = spec.largest_ = outer.even_size_ / (spec.degree / outer.degree);
}

void StateSpace::fill_parts(DimSpec& spec, int parent) {
  const Side& side = sides_[idx(spec.side)];
  spec.part_of.assign(ranks_.size(), -1);
  if (parent < 0) {
    spec.even = spec.ranges = true;
    spec.even_size_ = spec.largest_ = shape_[idx(spec.dim)];
    for (const std::int32_t position : side.positions) spec.part_of[idx(position)] = 0;
    return;
  }
  // A spec splits each part of its parent, the spec without the innermost axis, into n parts.
  const DimSpec& outer = *specs_[idx(parent)];
  const ShardEntry entry = spec.entries.back();
  const int n = side.sizes[idx(entry.axis)];
  spec.degree = outer.degree * n;
  for (std::size_t m = 0; m < side.positions.size(); ++m) {
    const std::size_t position = idx(side.positions[m]);
    const int coordinate = static_cast<std::int32_t>(m) / side.strides[idx(entry.axis)] % n;
    spec.part_of[position] = outer.part_of[position] * n + coordinate;
  }
  fill_even(spec, outer, entry);
  if (spec.even) return;
  const Split& split = splits_[idx(entry.split)];
  // Ranges are kept as two numbers, and only what is not a range as an index set: specs are made by the
  // thousand in a search.
  spec.ranges = outer.ranges && split_range(split, {0, 0}, 1, 0).has_value();
  spec.sizes_.reserve(idx(spec.degree));
  for (std::int32_t part = 0; part < outer.degree; ++part) {
    if (spec.ranges) {
      const IndexRange whole{outer.begin(part), outer.begin(part) + outer.size(part)};
      for (int i = 0; i < n; ++i) {
        const IndexRange range = *split_range(split, whole, n, i);
        spec.begins_.push_back(range.begin);
        spec.sizes_.push_back(range.end - range.begin);
      }
    } else {
      const IndexSet list = outer.part(part);
      for (int i = 0; i < n; ++i) {
        spec.sets_.push_back(split_part(split, list, n, i));
        spec.sizes_.push_back(cp::size(spec.sets_.back()));
      }
    }
  }
  spec.largest_ = *std::max_element(spec.sizes_.begin(), spec.sizes_.end());
}

BoxPair StateSpace::boxes(const State& from, const State& to) {
  BoxPair boxes;
  boxes.num_dims = num_dims_;
  for (int dim = 0; dim < num_dims_; ++dim) {
    const auto from_id = static_cast<std::uint32_t>(from.spec[idx(dim)]);
    const auto to_id = static_cast<std::uint32_t>(to.spec[idx(dim)]);
    std::unique_ptr<PairTable>& table = pairs_[std::uint64_t{from_id} << 32U | to_id];
    if (table == nullptr) {
      const DimSpec& a = spec(from, dim);
      const DimSpec& b = spec(to, dim);
      const bool keeps = !(a.ranges && b.ranges) && kept_pairs_ + a.degree * b.degree <= kKeptPairs;
      if (keeps) kept_pairs_ += a.degree * b.degree;
      table = std::make_unique<PairTable>(a, b, keeps);
    }
    boxes.dims[idx(dim)] = table.get();
  }
  return boxes;
}

State StateSpace::state_of(const Layout& layout, int side) {
  State state;
  state.side = side;
  const Side& s = sides_[idx(side)];
  for (const std::int8_t axis : s.axes) {
    if (std::holds_alternative<Partial>(layout.placements[idx(s.mesh_axes[idx(axis)])]))
      state.partial |= 1U << axis;
  }
  for (int dim = 0; dim < num_dims_; ++dim) {
    ShardList entries;
    for (const std::int8_t axis : axes_of(side, layout.shard_axes[idx(dim)])) {
      const Split& split = std::get<Shard>(layout.placements[idx(s.mesh_axes[idx(axis)])]).split;
      const auto id = std::find(splits_.begin(), splits_.end(), split) - splits_.begin();
      if (id == static_cast<std::ptrdiff_t>(splits_.size())) {
        throw InvalidInput(str("the split '", to_string(split), "' of dimension ", dim,
                               " occurs neither in the source nor in ",
                               "the target; layouts on the way use theirs, or plain chunks"));
      }
      entries.push_back({axis, static_cast<std::int8_t>(id)});
    }
    request_lists_[side][idx(dim)].push_back(entries);
    state.spec[idx(dim)] = intern(side, dim, entries);
  }
  return state;
}

ReduceOp StateSpace::reduction(int side, int axis) const {
  const auto* partial = std::get_if<Partial>(&sides_[idx(side)].placements[idx(axis)]);
  return partial == nullptr ? ReduceOp::sum : partial->op;
}

Layout StateSpace::layout_of(const State& state) const {
  const Side& side = sides_[idx(state.side)];
  Layout layout{side.mesh, std::vector<Placement>(idx(side.mesh.num_axes()), Placement{Replicate{}}), shape_,
                dtype_, std::vector<std::vector<int>>(idx(num_dims_))};
  for (const std::int8_t axis : side.axes) {
    if ((state.partial >> axis & 1U) != 0)
      layout.placements[idx(side.mesh_axes[idx(axis)])] = Partial{reduction(state.side, axis)};
  }
  for (int dim = 0; dim < num_dims_; ++dim) {
    for (const ShardEntry& entry : spec(state, dim).entries) {
      const int axis = side.mesh_axes[idx(entry.axis)];
      layout.placements[idx(axis)] = Shard{dim, splits_[idx(entry.split)]};
      layout.shard_axes[idx(dim)].push_back(axis);
    }
  }
  return layout;
}

std::int64_t StateSpace::numel(const State& state, int position) const {
  if (!in_side(state.side, position)) return 0;
  std::int64_t product = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    const DimSpec& s = spec(state, dim);
    product *= s.size(s.part_of[idx(position)]);
  }
  return product;
}

std::int64_t StateSpace::largest_numel(const State& state) const {
  std::int64_t product = 1;
  for (int dim = 0; dim < num_dims_; ++dim) product *= spec(state, dim).largest();
  return product;
}

bool StateSpace::is_even(const State& state) const {
  for (int dim = 0; dim < num_dims_; ++dim) {
    if (!spec(state, dim).even) return false;
  }
  return true;
}

bool StateSpace::equivalent(const State& a, const State& b) {
  if (a == b) return true;
  if (a.side != b.side && (a.partial | b.partial) != 0) {
    // Which ranks hold contributions to the same sums, only the meshes tell.
    return a.partial != 0 && b.partial != 0 && cp::equivalent(layout_of(a), layout_of(b));
  }
  if (a.partial != b.partial) return false;
  for (int position = 0; position < num_ranks(); ++position) {
    const std::int64_t count = numel(a, position);
    if (count != numel(b, position)) return false;
    if (count == 0) continue;
    for (int dim = 0; dim < num_dims_; ++dim) {
      const DimSpec& from = spec(a, dim);
      const DimSpec& to = spec(b, dim);
      if (&from == &to) continue;
      const std::int32_t i = from.part_of[idx(position)], j = to.part_of[idx(position)];
      if (from.size(i) != to.size(j)) return false;
      const bool same =
          from.ranges && to.ranges ? from.begin(i) == to.begin(j) : same_indices(from.part(i), to.part(j));
      if (!same) return false;
    }
  }
  return true;
}

}  // namespace cp::detail
