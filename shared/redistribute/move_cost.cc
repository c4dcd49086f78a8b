#include "shared/redistribute/move_cost.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "shared/redistribute/rounds.h"

namespace cp::detail {
namespace {

constexpr double kMicrosecondsPerByteAtOneGbps = 1e-3;

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

MoveCoster::MoveCoster(LayoutSpace& space, const CostModel& model, DType travel_dtype)
    : space_(space),
      model_(model),
      element_bytes_(size_bytes(travel_dtype)),
      copy_us_per_byte_(2 * kMicrosecondsPerByteAtOneGbps / model.memory_gbps),
      best_efficiency_(
          std::max({model.all_gather_efficiency, model.reduce_scatter_efficiency, model.all_reduce_efficiency,
                    model.all_to_all_efficiency, model.exchange_efficiency})),
      best_gap_(std::numeric_limits<double>::infinity()) {
  const int n = space.num_ranks();
  double slowest = 0;
  for (int side = 0; side < space.num_sides(); ++side) {
    axis_gap_.emplace_back(idx(space.mesh(side).num_axes()), 0.0);
    for (const std::int8_t axis : space.axes(side)) {
      const double gap = kMicrosecondsPerByteAtOneGbps / model.bandwidth_gbps(space.mesh(side), axis);
      axis_gap_[idx(side)][idx(axis)] = gap;
      slowest = std::max(slowest, gap);
    }
  }
  // Between ranks that no mesh holds both of.
  if (space.num_sides() > 1) slowest = std::max(slowest, kMicrosecondsPerByteAtOneGbps / model.network_gbps);
  gap_.assign(idx(n) * idx(n), slowest);
  for (int side = space.num_sides() - 1; side >= 0; --side) {
    for (int a = 0; a < n; ++a) {
      if (!space.in_side(side, a)) continue;
      for (int b = 0; b < n; ++b) {
        if (!space.in_side(side, b)) continue;
        double worst = 0;
        for (const std::int8_t axis : space.axes(side)) {
          const bool differ = space.coordinate(side, a, axis) != space.coordinate(side, b, axis);
          if (differ) worst = std::max(worst, axis_gap_[idx(side)][idx(axis)]);
        }
        gap_[idx(a) * idx(n) + idx(b)] = worst;
        if (a != b) best_gap_ = std::min(best_gap_, worst);
      }
    }
  }
  if (space.num_sides() > 1) best_gap_ = std::min(best_gap_, slowest);
  if (n == 1) best_gap_ = 0;
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

void MoveCoster::charge_group(const StateMove& move, const Traffic& traffic, std::int32_t position,
                              MoveCost& cost) {
  const RankTraffic& rank = traffic.ranks[idx(position)];
  const auto members = static_cast<double>(rank.members);
  space_.members(move.from.side, position, move.axes, group_);
  double gaps = 0;
  for (const std::int32_t peer : group_) gaps += gap(position, peer);
  double block = static_cast<double>(rank.block * element_bytes_);
  double rounds = members - 1;
  if (move.kind == MoveKind::all_reduce) {
    block *= 2 / members;
    rounds *= 2;
  }
  const std::int64_t copied = rank.send_numel > 0 ? rank.old_numel : 0;
  const std::int64_t unpacked = rank.recv_numel > 0 ? rank.new_numel : 0;
  cost.time_us[idx(position)] = model_.step_latency_us + model_.peer_latency_us * rounds +
                                gaps * block / efficiency(move.kind) +
                                static_cast<double>((copied + unpacked) * element_bytes_) * copy_us_per_byte_;
  const std::int64_t peers = rank.members - 1;
  if (move.kind == MoveKind::all_reduce) {
    cost.wire_bytes_received[idx(position)] = 2 * peers * rank.block * element_bytes_ / rank.members;
    cost.bytes_received[idx(position)] = cost.wire_bytes_received[idx(position)];
    return;
  }
  cost.wire_bytes_received[idx(position)] = peers * rank.block * element_bytes_;
  std::int64_t payload = 0;
  for (const Piece& piece : traffic.pieces) {
    if (piece.to == position && piece.from != position) payload += piece.numel;
  }
  cost.bytes_received[idx(position)] = payload * element_bytes_;
}

void MoveCoster::charge_exchange(const StateMove& move, const Traffic& traffic, MoveCost& cost) {
  const bool reduces = move.kind == MoveKind::reduce_exchange;
  const double per_byte_efficiency = 1 / efficiency(move.kind);
  for (const Piece& piece : traffic.pieces) {
    const std::int64_t bytes = piece.numel * element_bytes_;
    if (piece.from == piece.to) continue;
    cost.bytes_received[idx(piece.to)] += bytes;
    cost.time_us[idx(piece.to)] +=
        static_cast<double>(bytes) * gap(piece.from, piece.to) * per_byte_efficiency;
    if (reduces) {  // accumulate reads two and writes one; packing reads and writes one
      cost.time_us[idx(piece.to)] += 1.5 * static_cast<double>(bytes) * copy_us_per_byte_;
      if (!piece.from_contiguous)
        cost.time_us[idx(piece.from)] += static_cast<double>(bytes) * copy_us_per_byte_;
    }
  }
  for (std::size_t p = 0; p < traffic.ranks.size(); ++p) {
    const RankTraffic& rank = traffic.ranks[p];
    const double steps =
        reduces ? static_cast<double>(traffic.rounds.size()) : 1;  // each round is a step of its own
    cost.time_us[p] += model_.step_latency_us * steps;
    cost.time_us[p] += model_.peer_latency_us * std::max(rank.peers_in, rank.peers_out);
    const std::int64_t copied =
        reduces ? rank.self_numel : rank.send_numel + rank.recv_numel + rank.self_numel;
    cost.time_us[p] += static_cast<double>(copied * element_bytes_) * copy_us_per_byte_;
    cost.wire_bytes_received[p] = cost.bytes_received[p];
  }
}

void MoveCoster::evaluate(const StateMove& move, Ends ends, MoveCost& cost) {
  const std::size_t n = idx(space_.num_ranks());
  cost.time_us.assign(n, 0);
  cost.bytes_received.assign(n, 0);
  cost.wire_bytes_received.assign(n, 0);
  cost.temporary_bytes.assign(n, 0);
  // Where all shards are equally large, all members of all groups do the same: one stands for the others.
  const bool alike = is_equal_count(move.kind) && space_.num_ranks() == space_.mesh(move.from.side).size() &&
                     space_.is_even(move.from) && space_.is_even(move.to);
  find_traffic(space_, move, traffic_, alike ? 0 : -1);
  if (move.kind == MoveKind::exchange || move.kind == MoveKind::reduce_exchange) {
    charge_exchange(move, traffic_, cost);
  } else if (!is_equal_count(move.kind)) {
    for (std::size_t p = 0; p < n; ++p) {
      const std::int64_t bytes = traffic_.ranks[p].new_numel * element_bytes_;
      cost.time_us[p] = model_.local_latency_us + static_cast<double>(bytes) * copy_us_per_byte_;
    }
  } else {
    for (std::size_t p = 0; p < (alike ? 1 : n); ++p) {
      if (space_.in_side(move.from.side, static_cast<int>(p))) {
        charge_group(move, traffic_, static_cast<std::int32_t>(p), cost);
      }
    }
  }
  for (std::size_t p = 0; p < (alike ? 1 : n); ++p)
    cost.temporary_bytes[p] = live_bytes(move, traffic_.ranks[p], ends);
  if (!alike) return;
  std::fill(cost.time_us.begin() + 1, cost.time_us.end(), cost.time_us[0]);
  std::fill(cost.bytes_received.begin() + 1, cost.bytes_received.end(), cost.bytes_received[0]);
  std::fill(cost.wire_bytes_received.begin() + 1, cost.wire_bytes_received.end(),
            cost.wire_bytes_received[0]);
  std::fill(cost.temporary_bytes.begin() + 1, cost.temporary_bytes.end(), cost.temporary_bytes[0]);
}

std::vector<double> MoveCoster::cast_us(bool before, bool after) const {
  std::vector<double> time_us(idx(space_.num_ranks()), 0);
  for (int p = 0; p < space_.num_ranks(); ++p) {
    for (const auto& [casts, state] :
         {std::pair(before, &space_.source()), std::pair(after, &space_.target())}) {
      if (!casts) continue;
      time_us[idx(p)] +=
          model_.local_latency_us + static_cast<double>(shard_bytes(*state, p)) * copy_us_per_byte_;
    }
  }
  return time_us;
}

void MoveCoster::evaluate_quickly(const StateMove& move, std::vector<double>& time_us,
                                  std::vector<double>& bytes) {
  const bool local = move.kind == MoveKind::slice || move.kind == MoveKind::to_partial;
  // A sum takes in n - 1 contributions somewhere.
  double contributions = 1;
  if (!local && move.from.partial != 0) {
    const unsigned kept = move.from.side == move.to.side ? move.to.partial : 0U;
    for (const std::int8_t axis : space_.axes(move.from.side)) {
      const bool reduced = (move.from.partial >> axis & 1) != 0 && (kept >> axis & 1U) == 0;
      if (reduced) contributions *= space_.axis_size(move.from.side, axis);
    }
  }
  const bool reduces = contributions > 1;
  const double receives =
      move.kind == MoveKind::all_reduce ? 2 * (contributions - 1) / contributions : contributions - 1;
  const bool in_rounds = move.kind == MoveKind::reduce_exchange;
  const double latency =
      local ? model_.local_latency_us : model_.step_latency_us * (in_rounds ? receives : 1);
  const double us_per_byte = best_gap_ / efficiency(move.kind) + (in_rounds ? 1.5 * copy_us_per_byte_ : 0);
  const BoxPair boxes = space_.boxes(move.from, move.to);
  for (std::int32_t p = 0; p < space_.num_ranks(); ++p) {
    std::int64_t missing = 0;
    if (!local && space_.in_side(move.to.side, p)) {
      missing = boxes.new_numel(p);
      if (!reduces && space_.in_side(move.from.side, p)) missing -= boxes.shared_numel(p, p);
    }
    bytes[idx(p)] = static_cast<double>(missing * element_bytes_) * (reduces ? receives : 1);
    const bool idle = is_equal_count(move.kind) && !space_.in_side(move.from.side, p);
    time_us[idx(p)] = (idle ? 0 : latency) + bytes[idx(p)] * us_per_byte;
  }
}

}  // namespace cp::detail
