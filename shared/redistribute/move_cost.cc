#include "shared/redistribute/move_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/units.h"
#include "shared/redistribute/rounds.h"

namespace cp::detail {
namespace {

// 1 byte / (1e9 bytes/s) = 1e-9 s = 1e-3 us.
constexpr double kMicrosecondsPerByteAtOneGbps = 1e-3;
// Of more ranks than this, a bound looks at this many, spread over all of them. Chosen: the bound is the
// largest of what single ranks miss, so fewer ranks only make it lower.
constexpr std::int32_t kSampledRanks = 64;

std::int64_t picoseconds(double time_us) { return std::llround(time_us * kPsPerUs); }

}  // namespace

MoveCoster::MoveCoster(StateSpace& space, const CostModel& model, PartialRule rule, DType travel_dtype,
                       std::int64_t source_bytes, std::int64_t target_bytes)
    : space_(space),
      model_(model),
      rule_(rule),
      element_bytes_(size_bytes(travel_dtype)),
      source_bytes_(source_bytes),
      target_bytes_(target_bytes),
      copy_us_per_byte_(2 * kMicrosecondsPerByteAtOneGbps / model.memory_gbps),
      best_efficiency_(
          std::max({model.all_gather_efficiency, model.reduce_scatter_efficiency, model.all_reduce_efficiency,
                    model.all_to_all_efficiency, model.exchange_efficiency})),
      best_gap_(std::numeric_limits<double>::infinity()) {
  for (int side = 0; side < space.num_sides(); ++side) {
    axis_gap_.emplace_back();
    for (const std::int8_t axis : space.axes(side)) {
      const double gap =
          kMicrosecondsPerByteAtOneGbps / model.bandwidth_gbps(space.mesh(side), space.mesh_axis(side, axis));
      axis_gap_.back().push_back(gap);
      slowest_gap_ = std::max(slowest_gap_, gap);
      best_gap_ = std::min(best_gap_, gap);  // of two ranks that differ along this axis alone
    }
  }
  // Between ranks that no mesh holds both of.
  if (space.num_sides() > 1) {
    slowest_gap_ = std::max(slowest_gap_, kMicrosecondsPerByteAtOneGbps / model.network_gbps);
    best_gap_ = std::min(best_gap_, slowest_gap_);
  }
  if (space.num_ranks() == 1) best_gap_ = 0;
  ends_are_even_ = space.num_sides() == 1 && space.is_even(space.source()) && space.is_even(space.target());
  for (std::int32_t p = 0; p < (ends_are_even_ ? 1 : space.num_ranks()); ++p)
    largest_ends_bytes_ = std::max(largest_ends_bytes_, ends_bytes(p));
}

std::int64_t MoveCoster::ends_bytes(std::int32_t position) const {
  return space_.numel(space_.source(), position) * source_bytes_ +
         space_.numel(space_.target(), position) * target_bytes_;
}

double MoveCoster::gap(std::int32_t a, std::int32_t b) const {
  for (int side = 0; side < space_.num_sides(); ++side) {
    if (!space_.in_side(side, a) || !space_.in_side(side, b)) continue;
    double worst = 0;
    for (const std::int8_t axis : space_.axes(side)) {
      if (space_.coordinate(side, a, axis) != space_.coordinate(side, b, axis))
        worst = std::max(worst, axis_gap(side, axis));
    }
    return worst;
  }
  return slowest_gap_;
}

double MoveCoster::efficiency(MoveKind kind) const {
  switch (kind) {
    case MoveKind::all_gather:
      return model_.all_gather_efficiency;
    case MoveKind::reduce_scatter:
      return model_.reduce_scatter_efficiency;
    case MoveKind::all_reduce:
      return model_.all_reduce_efficiency;
    case MoveKind::all_to_all:
      return model_.all_to_all_efficiency;
    case MoveKind::exchange:
    case MoveKind::reduce_exchange:
    case MoveKind::slice:
    case MoveKind::to_partial:
      return model_.exchange_efficiency;
  }
  return 1;
}

// Everything that a rank holds at once, in the order in which a plan makes and drops it: the old shard is
// packed, staging travels, the new shard is unpacked. What is the caller's does not count.
std::int64_t MoveCoster::live_bytes(const StateMove& move, const RankTraffic& rank, Ends ends) const {
  const std::int64_t old_numel = ends.from_is_source ? 0 : rank.old_numel;
  const std::int64_t new_numel = ends.to_is_target ? 0 : rank.new_numel;
  switch (move.kind) {
    case MoveKind::slice:
    case MoveKind::to_partial:
      return (old_numel + new_numel) * element_bytes_;
    case MoveKind::all_reduce:  // in place where both are temporaries
      return std::max(old_numel, new_numel) * element_bytes_;
    case MoveKind::reduce_exchange:
      return live_in_rounds(rank, old_numel, new_numel) * element_bytes_;
    case MoveKind::all_gather:
    case MoveKind::all_to_all:
    case MoveKind::reduce_scatter:
    case MoveKind::exchange:
      break;
  }
  // What stays on the rank goes straight from shard to shard, unless both are temporaries: then it takes the
  // way of the staging.
  const bool chained = move.kind == MoveKind::exchange && !ends.from_is_source && !ends.to_is_target;
  const std::int64_t self = chained ? rank.self_numel : 0;
  const std::int64_t send = rank.send_numel > 0 ? rank.send_numel + self : 0;
  const std::int64_t recv = rank.recv_numel > 0 ? rank.recv_numel + self : 0;
  // In an exchange a rank may have nothing to send or to receive: then a shard is not needed meanwhile.
  const bool everybody = move.kind != MoveKind::exchange;
  const std::int64_t leaving = everybody || rank.peers_out > 0 || self > 0 ? old_numel : 0;
  const std::int64_t arriving = everybody || rank.peers_in > 0 || self > 0 ? new_numel : 0;
  const std::int64_t packing = (ends.from_is_cast || rank.self_numel > 0 || send > 0 ? old_numel : 0) + send;
  const std::int64_t travelling = (send > 0 ? send : leaving) + (recv > 0 ? recv : arriving);
  const std::int64_t unpacking = recv + new_numel;
  return std::max({packing, travelling, unpacking}) * element_bytes_;
}

// Microseconds for a byte from each peer of a group. Among these, those that differ from the rank along its
// slowest axis, (n - 1) x the sizes of all faster ones, are behind that axis, and so on with the others.
double MoveCoster::gap_to_peers(const StateMove& move) const {
  const int side = move.from.side;
  std::array<std::pair<double, int>, kMaxMeshAxes> axes;  // gap and size
  std::size_t count = 0;
  for (const std::int8_t axis : move.axes)
    axes[count++] = {axis_gap(side, axis), space_.axis_size(side, axis)};
  std::sort(axes.begin(), axes.begin() + count);
  double gaps = 0, faster = 1;
  for (std::size_t i = 0; i < count; ++i) {
    gaps += axes[i].first * (axes[i].second - 1) * faster;
    faster *= axes[i].second;
  }
  return gaps;
}

// One rank's part of a collective with equal counts.
double MoveCoster::group_time_us(const StateMove& move, double gap_to_peers, const RankTraffic& rank) const {
  const auto members = static_cast<double>(rank.members);
  double block = static_cast<double>(rank.block * element_bytes_), rounds = members - 1;
  if (move.kind == MoveKind::all_reduce) {
    block *= 2 / members;
    rounds *= 2;
  }
  const std::int64_t copied = rank.send_numel > 0 ? rank.old_numel : 0;
  const std::int64_t unpacked = rank.recv_numel > 0 ? rank.new_numel : 0;
  return model_.step_latency_us + model_.peer_latency_us * rounds +
         gap_to_peers * block / efficiency(move.kind) +
         static_cast<double>((copied + unpacked) * element_bytes_) * copy_us_per_byte_;
}

namespace {

struct Received {
  std::int64_t payload = 0, wire = 0;  // elements, but for an all_reduce, whose parts need not be whole ones
};

// What a member of a collective with equal counts receives. In a gather its old shard is in place; in an
// all-to-all, `kept` elements are.
Received received_in_group(const StateMove& move, const RankTraffic& rank, std::int64_t kept,
                           std::int64_t element_bytes) {
  const std::int64_t peers = rank.members - 1;
  if (move.kind == MoveKind::all_reduce) {
    const std::int64_t bytes = 2 * peers * rank.block * element_bytes / rank.members;
    return {bytes, bytes};
  }
  const std::int64_t payload =
      move.kind == MoveKind::reduce_scatter ? peers * rank.new_numel : rank.new_numel - kept;
  return {payload * element_bytes, peers * rank.block * element_bytes};
}

}  // namespace

void MoveCoster::charge_alike(const StateMove& move, Ends ends, MoveCost& cost) {
  const RankTraffic rank = group_traffic_of(space_, move, 0);
  const std::int64_t kept = space_.boxes(move.from, move.to).shared_numel(0, 0);
  const Received received = received_in_group(move, rank, kept, element_bytes_);
  cost.time_us = group_time_us(move, gap_to_peers(move), rank);
  cost.bytes_received = received.payload;
  cost.wire_bytes_received = received.wire;
  cost.bytes_received_total = received.payload * space_.num_ranks();
  cost.wire_bytes_received_total = received.wire * space_.num_ranks();
  cost.temporary_bytes = live_bytes(move, rank, ends);
  cost.peak_bytes = largest_ends_bytes_ + cost.temporary_bytes;
}

void MoveCoster::charge_groups(const StateMove& move, Ends ends, MoveCost& cost) {
  const int side = move.from.side;
  const BoxPair boxes = space_.boxes(move.from, move.to);
  const double gaps = gap_to_peers(move);
  double time_us = 0;
  for (std::int32_t p = 0; p < space_.num_ranks(); ++p) {
    if (!space_.in_side(side, p)) {  // not a part of it
      cost.peak_bytes = std::max(cost.peak_bytes, ends_bytes(p));
      continue;
    }
    if (!space_.leads(side, p, move.axes)) continue;
    space_.members(side, p, move.axes, members_);
    find_group_traffic(space_, move, members_, group_);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const std::int32_t member = members_[i];
      const RankTraffic& rank = group_[i];
      const Received received =
          received_in_group(move, rank, boxes.shared_numel(member, member), element_bytes_);
      time_us = std::max(time_us, group_time_us(move, gaps, rank));
      cost.bytes_received = std::max(cost.bytes_received, received.payload);
      cost.wire_bytes_received = std::max(cost.wire_bytes_received, received.wire);
      cost.bytes_received_total += received.payload;
      cost.wire_bytes_received_total += received.wire;
      const std::int64_t live = live_bytes(move, rank, ends);
      cost.temporary_bytes = std::max(cost.temporary_bytes, live);
      cost.peak_bytes = std::max(cost.peak_bytes, ends_bytes(member) + live);
    }
  }
  cost.time_us = time_us;
}

// Whether a rank makes its part of a to_partial of nothing: then its old shard is gone by then. The first
// rank of each axis does not, and where all ranks are alike, it stands for them.
bool MoveCoster::holds_neutral(const StateMove& move, std::int32_t position) const {
  const int side = move.from.side;
  if (!space_.in_side(side, position)) return false;
  AxisMask sharding = 0;
  for (int dim = 0; dim < space_.num_dims(); ++dim) {
    for (const ShardEntry& entry : space_.spec(move.from, dim).entries) sharding |= 1U << entry.axis;
  }
  for (const std::int8_t axis : space_.axes(side)) {
    const AxisMask bit = 1U << axis;
    const bool becomes = ((move.to.partial & ~move.from.partial & ~sharding) & bit) != 0;
    if (!becomes || space_.coordinate(side, position, axis) == 0) continue;
    const ReduceOp op = space_.reduction(side, axis);
    if (op == ReduceOp::product || (op == ReduceOp::sum && rule_ == PartialRule::first_keeps)) return true;
  }
  return false;
}

void MoveCoster::charge_local(const StateMove& move, Ends ends, MoveCost& cost) {
  // Where ranks are alike, the first one stands for all; in a to_partial it is the one that holds more.
  const bool alike = space_.num_sides() == 1 && space_.is_even(move.from) && space_.is_even(move.to) &&
                     (move.kind != MoveKind::to_partial || ends_are_even_);
  double time_us = 0;
  for (std::int32_t p = 0; p < (alike ? 1 : space_.num_ranks()); ++p) {
    RankTraffic rank;
    rank.old_numel = space_.numel(move.from, p);
    rank.new_numel = space_.numel(move.to, p);
    time_us = std::max(time_us, model_.local_latency_us +
                                    static_cast<double>(rank.new_numel * element_bytes_) * copy_us_per_byte_);
    std::int64_t live = live_bytes(move, rank, ends);
    if (!alike && move.kind == MoveKind::to_partial && holds_neutral(move, p)) {
      const std::int64_t old_numel = ends.from_is_cast ? rank.old_numel : 0;
      live = std::max(old_numel, ends.to_is_target ? 0 : rank.new_numel) * element_bytes_;
    }
    cost.temporary_bytes = std::max(cost.temporary_bytes, live);
    cost.peak_bytes = std::max(cost.peak_bytes, (alike ? largest_ends_bytes_ : ends_bytes(p)) + live);
  }
  cost.time_us = time_us;
}

void MoveCoster::charge_exchange(const StateMove& move, Ends ends, MoveCost& cost) {
  find_traffic(space_, move, false, traffic_);
  const std::size_t n = traffic_.ranks.size();
  const bool reduces = move.kind == MoveKind::reduce_exchange;
  const double per_byte_efficiency = 1 / efficiency(move.kind);
  time_us_.assign(n, 0);
  bytes_.assign(n, 0);
  for (const Piece& piece : traffic_.pieces) {
    const std::int64_t bytes = piece.numel * element_bytes_;
    if (piece.from == piece.to) continue;
    bytes_[idx(piece.to)] += bytes;
    time_us_[idx(piece.to)] += static_cast<double>(bytes) * gap(piece.from, piece.to) * per_byte_efficiency;
    if (reduces) {  // accumulate reads two and writes one; packing reads and writes one
      time_us_[idx(piece.to)] += 1.5 * static_cast<double>(bytes) * copy_us_per_byte_;
      if (!piece.from_contiguous) time_us_[idx(piece.from)] += static_cast<double>(bytes) * copy_us_per_byte_;
    }
  }
  // Each round is a step of its own.
  const double steps = reduces ? static_cast<double>(traffic_.rounds.size()) : 1;
  double slowest_us = 0;
  for (std::size_t p = 0; p < n; ++p) {
    const RankTraffic& rank = traffic_.ranks[p];
    const std::int64_t copied =
        reduces ? rank.self_numel : rank.send_numel + rank.recv_numel + rank.self_numel;
    slowest_us = std::max(slowest_us, time_us_[p] + model_.step_latency_us * steps +
                                          model_.peer_latency_us * std::max(rank.peers_in, rank.peers_out) +
                                          static_cast<double>(copied * element_bytes_) * copy_us_per_byte_);
    cost.bytes_received = std::max(cost.bytes_received, bytes_[p]);
    cost.bytes_received_total += bytes_[p];
    const std::int64_t live = live_bytes(move, rank, ends);
    cost.temporary_bytes = std::max(cost.temporary_bytes, live);
    cost.peak_bytes = std::max(cost.peak_bytes, ends_bytes(static_cast<std::int32_t>(p)) + live);
  }
  cost.wire_bytes_received = cost.bytes_received;
  cost.wire_bytes_received_total = cost.bytes_received_total;
  cost.time_us = slowest_us;
}

MoveCost MoveCoster::evaluate(const StateMove& move, Ends ends) {
  MoveCost cost;
  if (ranks_are_alike(space_, move)) {
    charge_alike(move, ends, cost);
  } else if (is_equal_count(move.kind)) {
    charge_groups(move, ends, cost);
  } else if (move.kind == MoveKind::exchange || move.kind == MoveKind::reduce_exchange) {
    charge_exchange(move, ends, cost);
  } else {
    charge_local(move, ends, cost);
  }
  cost.time_ps = picoseconds(cost.time_us);
  return cost;
}

std::int64_t MoveCoster::effort(const StateMove& move, std::int64_t limit) {
  if (ranks_are_alike(space_, move)) return std::min<std::int64_t>(limit, 1);
  const bool lists = move.kind == MoveKind::exchange || move.kind == MoveKind::reduce_exchange;
  // Only exchanges list pieces; for all other moves it is enough to look at each rank once.
  return std::min(limit, space_.num_ranks() + (lists ? count_pieces(space_, move, limit) : 0));
}

double MoveCoster::cast_us(bool before, bool after) const {
  double slowest_us = 0;
  for (int p = 0; p < space_.num_ranks(); ++p) {
    double time_us = 0;
    for (const auto& [casts, state] :
         {std::pair(before, &space_.source()), std::pair(after, &space_.target())}) {
      if (!casts) continue;
      time_us += model_.local_latency_us +
                 static_cast<double>(space_.numel(*state, p) * element_bytes_) * copy_us_per_byte_;
    }
    slowest_us = std::max(slowest_us, time_us);
  }
  return slowest_us;
}

std::int64_t MoveCoster::least_ps(MoveKind kind) const {
  if (space_.global_numel() == 0) return 0;  // a reduce_exchange of nothing has no rounds
  const bool local = kind == MoveKind::slice || kind == MoveKind::to_partial;
  // An exchange between ranks that hold what they need talks to nobody, and is a step all the same.
  return picoseconds(local ? model_.local_latency_us : model_.step_latency_us);
}

MoveCoster::AtLeast MoveCoster::at_least(const StateMove& move) {
  if (space_.global_numel() == 0) return {};
  const bool local = move.kind == MoveKind::slice || move.kind == MoveKind::to_partial;
  if (local) return {picoseconds(model_.local_latency_us), 0};
  // A sum takes in n - 1 contributions somewhere.
  double contributions = 1;
  if (move.from.partial != 0) {
    const AxisMask kept = move.from.side == move.to.side ? move.to.partial : 0U;
    for (const std::int8_t axis : space_.axes(move.from.side)) {
      const bool reduced = (move.from.partial >> axis & 1U) != 0 && (kept >> axis & 1U) == 0;
      if (reduced) contributions *= space_.axis_size(move.from.side, axis);
    }
  }
  const bool reduces = contributions > 1;
  const double receives =
      move.kind == MoveKind::all_reduce ? 2 * (contributions - 1) / contributions : contributions - 1;
  const BoxPair boxes = space_.boxes(move.from, move.to);
  std::int64_t missing = 0;
  // The rank that misses most decides how long the move lasts; any rank gives a bound.
  const std::int32_t n = space_.num_ranks(), stride = std::max(1, n / kSampledRanks);
  for (std::int32_t p = 0; p < n; p += stride) {
    if (!space_.in_side(move.to.side, p)) continue;
    std::int64_t numel = boxes.new_numel(p);
    if (!reduces && space_.in_side(move.from.side, p)) numel -= boxes.shared_numel(p, p);
    missing = std::max(missing, numel);
  }
  const bool in_rounds = move.kind == MoveKind::reduce_exchange;
  const double bytes = static_cast<double>(missing * element_bytes_) * (reduces ? receives : 1);
  double peers = 1;
  if (is_equal_count(move.kind)) {
    for (const std::int8_t axis : move.axes) peers *= space_.axis_size(move.from.side, axis);
    peers = (peers - 1) * (move.kind == MoveKind::all_reduce ? 2 : 1);
  } else if (in_rounds) {
    peers = receives;
  } else if (const std::int64_t largest = space_.largest_numel(move.from); largest > 0) {
    peers = std::ceil(static_cast<double>(missing) / static_cast<double>(largest));
  }
  // 1.5: an accumulation reads two elements and writes one, where copy_us_per_byte_ counts one of each.
  const double us_per_byte = best_gap_ / efficiency(move.kind) + (in_rounds ? 1.5 * copy_us_per_byte_ : 0);
  // The sums of doubles here round differently from evaluate()'s, and a bound must not exceed the cost: see
  // kRounding in bounds.cc.
  constexpr double kRounding = 1 - 1e-9;
  const double time_us = model_.step_latency_us * (in_rounds ? receives : 1) +
                         model_.peer_latency_us * peers + bytes * us_per_byte;
  return {static_cast<std::int64_t>(time_us * kPsPerUs * kRounding),
          static_cast<std::int64_t>(bytes * kRounding)};
}

}  // namespace cp::detail
