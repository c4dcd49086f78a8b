#include "shared/redistribute/layout_space.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"

namespace cp::detail {
namespace {

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

bool is_range(const IndexSet& set) {
  return set.size() == 1 && (set[0].count == 1 || set[0].run == set[0].stride);
}

Shared share(const IndexSet& from, const IndexSet& to) {
  if (from.empty() || to.empty()) return {};
  if (is_range(from) && is_range(to)) {
    const std::int64_t begin = std::max(from[0].begin, to[0].begin);
    const std::int64_t end = std::min(from[0].begin + from[0].size(), to[0].begin + to[0].size());
    if (begin >= end) return {};
    return {end - begin, begin - from[0].begin, begin - to[0].begin, true};
  }
  Shared shared;
  const std::vector<Overlap> overlaps = intersect(from, to);
  if (overlaps.empty()) return shared;
  for (const Overlap& overlap : overlaps) shared.numel += overlap.run * overlap.count;
  shared.from_start = overlaps.front().in_a;
  shared.to_start = overlaps.front().in_b;
  const Overlap& first = overlaps.front();
  shared.contiguous = overlaps.size() == 1 &&
                      (first.count == 1 || (first.stride_a == first.run && first.stride_b == first.run));
  return shared;
}

PairTable share_parts(const DimSpec& from, const DimSpec& to) {
  PairTable table;
  table.to_parts = static_cast<std::int32_t>(to.parts.size());
  table.shared.reserve(from.parts.size() * to.parts.size());
  for (const IndexSet& a : from.parts) {
    for (const IndexSet& b : to.parts) table.shared.push_back(share(a, b));
  }
  table.first.reserve(to.parts.size() + 1);
  table.first.push_back(0);
  for (std::int32_t t = 0; t < table.to_parts; ++t) {
    for (std::int32_t f = 0; f < static_cast<std::int32_t>(from.parts.size()); ++f) {
      if (table.at(f, t).numel > 0) table.overlapping.push_back(f);
    }
    table.first.push_back(static_cast<std::int32_t>(table.overlapping.size()));
  }
  return table;
}

}  // namespace

std::size_t StateHash::operator()(const State& state) const noexcept {
  std::uint64_t hash =
      (static_cast<std::uint64_t>(state.partial) << 8) ^ static_cast<std::uint64_t>(state.side);
  for (const std::int16_t spec : state.spec) {
    hash = (hash ^ static_cast<std::uint64_t>(spec)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

std::size_t LayoutSpace::SpecKeyHash::operator()(const SpecKey& key) const noexcept {
  std::uint64_t hash = static_cast<std::uint64_t>(key.side) << 8 | static_cast<std::uint64_t>(key.dim);
  for (const ShardEntry& entry : key.entries) {
    hash = (hash * 0x100000001b3) ^ static_cast<std::uint64_t>(entry.axis * 64 + entry.split + 1);
  }
  return hash;
}

LayoutSpace::LayoutSpace(const Layout& source, const Layout& target, DType dtype)
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
    for (std::size_t axis = 0; axis < target.placements.size(); ++axis) {
      if (std::holds_alternative<Partial>(target.placements[axis]))
        sides_[0].placements[axis] = target.placements[axis];
    }
  }
}

void LayoutSpace::add_side(const Layout& layout) {
  Side side{layout.mesh, {}, {}, {}, {}, {}, {}, layout.placements};
  for (const MeshAxis& axis : layout.mesh.axes()) side.sizes.push_back(axis.size);
  const int num_axes = layout.mesh.num_axes();
  side.strides.resize(idx(num_axes));
  std::int32_t stride = 1;
  for (int axis = num_axes - 1; axis >= 0; --axis) {
    side.strides[idx(axis)] = stride;
    stride *= layout.mesh.axis_size(axis);
  }
  for (int axis = 0; axis < num_axes; ++axis) {
    if (layout.mesh.axis_size(axis) > 1) side.axes.push_back(static_cast<std::int8_t>(axis));
  }
  if (side.axes.size() > kMaxMeshAxes) {
    throw InvalidInput(str("mesh ", layout.mesh.to_string(), " has ", side.axes.size(),
                           " axes of more than one rank; flatten ",
                           "axes that are used together until at most ", kMaxMeshAxes, " are left"));
  }
  const std::vector<Rank>& ranks = layout.mesh.ranks();
  side.positions.reserve(ranks.size());
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
  for (Side& known : sides_) {
    known.mesh_index.assign(ranks_.size(), -1);
    for (std::size_t i = 0; i < known.positions.size(); ++i) {
      known.mesh_index[idx(known.positions[i])] = static_cast<std::int32_t>(i);
    }
    known.coordinates.assign(ranks_.size() * known.sizes.size(), -1);
    for (std::size_t p = 0; p < ranks_.size(); ++p) {
      if (known.mesh_index[p] < 0) continue;
      for (std::size_t axis = 0; axis < known.sizes.size(); ++axis) {
        known.coordinates[p * known.sizes.size() + axis] =
            known.mesh_index[p] / known.strides[axis] % known.sizes[axis];
      }
    }
  }
  if (sides_.size() == 1 && !identity_ranks_) {
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      position_of_.emplace(ranks_[i], static_cast<std::int32_t>(i));
  }
}

void LayoutSpace::add_splits(const Layout& layout) {
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

int LayoutSpace::position(Rank rank) const {
  if (identity_ranks_) return rank >= 0 && rank < num_ranks() ? rank : -1;
  const auto found = position_of_.find(rank);
  return found == position_of_.end() ? -1 : found->second;
}

void LayoutSpace::members(int side, int position, std::span<const std::int8_t> axes,
                          std::vector<std::int32_t>& out) const {
  const Side& s = sides_[idx(side)];
  std::int32_t base = s.mesh_index[idx(position)];
  for (const std::int8_t axis : axes) base -= coordinate(side, position, axis) * s.strides[idx(axis)];
  out.assign(1, base);
  for (const std::int8_t axis : axes) {
    const std::size_t known = out.size();
    const int size = s.mesh.axis_size(axis);
    out.resize(known * idx(size));
    for (std::size_t i = known; i-- > 0;) {
      for (int c = size - 1; c >= 0; --c) out[i * idx(size) + idx(c)] = out[i] + c * s.strides[idx(axis)];
    }
  }
  for (std::int32_t& index : out) index = s.positions[idx(index)];
}

bool LayoutSpace::usable(int side, int dim, const ShardList& entries) const {
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

int LayoutSpace::intern(int side, int dim, const ShardList& entries) {
  const SpecKey key{static_cast<std::int8_t>(side), static_cast<std::int8_t>(dim), entries};
  const auto known = spec_index_.find(key);
  if (known != spec_index_.end()) return known->second;
  if (!usable(side, dim, entries)) return -1;
  int parent = -1;
  if (!entries.empty()) parent = intern(side, dim, ShardList(entries.begin(), entries.end() - 1));
  auto spec = std::make_unique<DimSpec>(DimSpec{side, dim, entries, {}, {}, {}, false, 1});
  fill_parts(*spec, parent);
  const auto id = static_cast<std::int32_t>(specs_.size());
  specs_.push_back(std::move(spec));
  pairs_.emplace_back();
  spec_index_.emplace(key, id);
  return id;
}

void LayoutSpace::fill_parts(DimSpec& spec, int parent) {
  const Side& side = sides_[idx(spec.side)];
  spec.part_of.assign(ranks_.size(), -1);
  if (parent < 0) {
    spec.parts.push_back(index_range(0, shape_[idx(spec.dim)]));
    spec.even = true;
    for (const std::int32_t position : side.positions) spec.part_of[idx(position)] = 0;
  } else {
    const DimSpec& outer = *specs_[idx(parent)];
    const ShardEntry entry = spec.entries.back();
    const Split& split = splits_[idx(entry.split)];
    const int n = side.mesh.axis_size(entry.axis);
    spec.degree = outer.degree * n;
    spec.parts.reserve(idx(spec.degree));
    for (const IndexSet& list : outer.parts) {
      for (int i = 0; i < n; ++i) spec.parts.push_back(split_part(split, list, n, i));
    }
    for (std::size_t m = 0; m < side.positions.size(); ++m) {
      const std::size_t position = idx(side.positions[m]);
      const int coordinate = static_cast<std::int32_t>(m) / side.strides[idx(entry.axis)] % n;
      spec.part_of[position] = outer.part_of[position] * n + coordinate;
    }
    spec.even = outer.even && std::holds_alternative<Chunked>(split);
  }
  for (const IndexSet& part : spec.parts) spec.sizes.push_back(size(part));
  spec.even = spec.even && std::all_of(spec.sizes.begin(), spec.sizes.end(),
                                       [&](std::int64_t size) { return size == spec.sizes.front(); });
}

const PairTable& LayoutSpace::pair(int from_spec, int to_spec) {
  std::vector<std::unique_ptr<PairTable>>& row = pairs_[idx(from_spec)];
  if (row.size() <= idx(to_spec)) row.resize(specs_.size());
  std::unique_ptr<PairTable>& table = row[idx(to_spec)];
  if (table == nullptr) table = std::make_unique<PairTable>(share_parts(spec(from_spec), spec(to_spec)));
  return *table;
}

BoxPair LayoutSpace::boxes(const State& from, const State& to) {
  BoxPair boxes;
  boxes.num_dims = num_dims_;
  for (int dim = 0; dim < num_dims_; ++dim) {
    const DimSpec& a = spec(from, dim);
    const DimSpec& b = spec(to, dim);
    boxes.dims[idx(dim)] = {&pair(from.spec[idx(dim)], to.spec[idx(dim)]), a.part_of.data(), b.part_of.data(),
                            a.sizes.data(), b.sizes.data()};
  }
  return boxes;
}

State LayoutSpace::state_of(const Layout& layout, int side) {
  State state;
  state.side = static_cast<std::int8_t>(side);
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (std::holds_alternative<Partial>(layout.placements[axis]) &&
        layout.mesh.axis_size(static_cast<int>(axis)) > 1) {
      state.partial = static_cast<std::uint16_t>(state.partial | (1U << axis));
    }
  }
  for (int dim = 0; dim < num_dims_; ++dim) {
    ShardList entries;
    for (const int axis : layout.shard_axes[idx(dim)]) {
      if (layout.mesh.axis_size(axis) == 1) continue;
      const Split& split = std::get<Shard>(layout.placements[idx(axis)]).split;
      const auto id = std::find(splits_.begin(), splits_.end(), split) - splits_.begin();
      if (id == static_cast<std::ptrdiff_t>(splits_.size())) {
        throw InvalidInput(str("the split '", to_string(split), "' of dimension ", dim,
                               " occurs neither in the source nor in ",
                               "the target; layouts on the way use theirs, or plain chunks"));
      }
      entries.push_back({static_cast<std::int8_t>(axis), static_cast<std::int8_t>(id)});
    }
    request_lists_[side][idx(dim)].push_back(entries);
    state.spec[idx(dim)] = static_cast<std::int16_t>(intern(side, dim, entries));
  }
  return state;
}

ReduceOp LayoutSpace::reduction(int side, int axis) const {
  const auto* partial = std::get_if<Partial>(&sides_[idx(side)].placements[idx(axis)]);
  return partial == nullptr ? ReduceOp::sum : partial->op;
}

Layout LayoutSpace::layout_of(const State& state) const {
  const Side& side = sides_[idx(state.side)];
  Layout layout{side.mesh, std::vector<Placement>(idx(side.mesh.num_axes()), Placement{Replicate{}}), shape_,
                dtype_, std::vector<std::vector<int>>(idx(num_dims_))};
  for (const std::int8_t axis : side.axes) {
    if ((state.partial >> axis & 1) != 0) layout.placements[idx(axis)] = Partial{reduction(state.side, axis)};
  }
  for (int dim = 0; dim < num_dims_; ++dim) {
    for (const ShardEntry& entry : spec(state, dim).entries) {
      layout.placements[idx(entry.axis)] = Shard{dim, splits_[idx(entry.split)]};
      layout.shard_axes[idx(dim)].push_back(entry.axis);
    }
  }
  return layout;
}

std::int64_t LayoutSpace::numel(const State& state, int position) const {
  if (!in_side(state.side, position)) return 0;
  std::int64_t product = 1;
  for (int dim = 0; dim < num_dims_; ++dim) {
    const DimSpec& s = spec(state, dim);
    product *= s.sizes[idx(s.part_of[idx(position)])];
  }
  return product;
}

bool LayoutSpace::is_even(const State& state) const {
  for (int dim = 0; dim < num_dims_; ++dim) {
    if (!spec(state, dim).even) return false;
  }
  return true;
}

bool LayoutSpace::equivalent(const State& a, const State& b) {
  if (a == b) return true;
  if (a.partial != b.partial || (a.side != b.side && (a.partial | b.partial) != 0)) return false;
  for (int position = 0; position < num_ranks(); ++position) {
    const std::int64_t count = numel(a, position);
    if (count != numel(b, position)) return false;
    if (count == 0) continue;
    for (int dim = 0; dim < num_dims_; ++dim) {
      const DimSpec& from = spec(a, dim);
      const DimSpec& to = spec(b, dim);
      if (&from == &to) continue;
      if (!same_indices(from.parts[idx(from.part_of[idx(position)])],
                        to.parts[idx(to.part_of[idx(position)])]))
        return false;
    }
  }
  return true;
}

}  // namespace cp::detail
