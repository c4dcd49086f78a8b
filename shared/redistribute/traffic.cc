#include "shared/redistribute/traffic.h"

#include <algorithm>
#include <span>
#include <utility>

#include "shared/base/index.h"

namespace cp::detail {
namespace {

// Which ranks hold the same values of the same box before a move, so that any one of them can be the source:
// looked up by the number of the box and the coordinates along the partial axes.
class Holders {
 public:
  Holders(const StateSpace& space, const State& state, AxisMask kept_axes) {
    for (int dim = 0; dim < space.num_dims(); ++dim) boxes_ *= space.spec(state, dim).degree;
    for (const std::int8_t axis : space.axes(state.side)) {
      if ((state.partial >> axis & 1U) != 0) contributions_ *= space.axis_size(state.side, axis);
    }
    kept_.assign(idx(contributions_), 0);
    first_.assign(idx(boxes_ * contributions_) + 1, 0);
    std::vector<std::int64_t> keys(idx(space.num_ranks()), -1);
    for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
      if (!space.in_side(state.side, p)) continue;
      const std::int64_t contribution = partial_coordinates(space, state, p, state.partial);
      keys[idx(p)] = box_number(space, state, p) * contributions_ + contribution;
      kept_[idx(contribution)] = partial_coordinates(space, state, p, kept_axes);
      ++first_[idx(keys[idx(p)]) + 1];
    }
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    positions_.resize(idx(first_.back()));
    std::vector<std::int32_t> next(first_.begin(), first_.end() - 1);
    for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
      if (keys[idx(p)] >= 0) positions_[idx(next[idx(keys[idx(p)])]++)] = p;
    }
  }

  std::int64_t contributions() const { return contributions_; }
  // The coordinates of a contribution along the axes that stay partial.
  std::int64_t kept(std::int64_t contribution) const { return kept_[idx(contribution)]; }
  std::span<const std::int32_t> of(std::int64_t box, std::int64_t contribution) const {
    const std::size_t key = idx(box * contributions_ + contribution);
    return std::span(positions_).subspan(idx(first_[key]), idx(first_[key + 1] - first_[key]));
  }

 private:
  std::int64_t boxes_ = 1, contributions_ = 1;
  std::vector<std::int64_t> kept_;  // by contribution
  std::vector<std::int32_t> first_, positions_;
};

// The receiver itself; else the holder whose coordinates agree with the receiver's on the slowest axes that
// they can (meshes are written from the slowest axis to the fastest). Holders of one box and contribution
// differ along the axes that neither shard nor are partial, in every way, so that one of them agrees with the
// receiver on all of these. To a receiver that is not on the holders' mesh all are equally near, and they are
// dealt round-robin over the receivers.
class NearestHolder {
 public:
  NearestHolder(const StateSpace& space, const State& state) : space_(space), side_(state.side) {
    AxisMask used = state.partial;
    for (int dim = 0; dim < space.num_dims(); ++dim) {
      for (const ShardEntry& entry : space.spec(state, dim).entries) used |= 1U << entry.axis;
    }
    for (const std::int8_t axis : space.axes(state.side)) {
      if ((used >> axis & 1U) == 0) free_.push_back(axis);
    }
  }

  std::int32_t of(std::span<const std::int32_t> holders, std::int32_t receiver) const {
    if (holders.size() == 1) return holders.front();
    if (!space_.in_side(side_, receiver)) return holders[idx(receiver) % holders.size()];
    return space_.moved_beside(side_, holders.front(), receiver, free_);
  }

 private:
  const StateSpace& space_;
  int side_;
  AxisList free_;
};

// Calls visit(number) for each old box that shares something with rank `to`'s new one.
template <class Visit>
void visit_overlapping_boxes(const BoxPair& boxes, std::int32_t to, int dim, std::int64_t number,
                             const Visit& visit) {
  if (dim == boxes.num_dims) {
    visit(number);
    return;
  }
  const std::int64_t degree = boxes.dim(dim).from().degree;
  for (const std::int32_t part : boxes.dim(dim).overlapping(boxes.to_part(dim, to)))
    visit_overlapping_boxes(boxes, to, dim + 1, number * degree + part, visit);
}

void find_exchange(const StateSpace& space, const StateMove& move, const BoxPair& boxes, Traffic& traffic) {
  const bool same_mesh = move.from.side == move.to.side;
  const AxisMask kept = same_mesh ? move.from.partial & move.to.partial : 0U;
  const Holders holders(space, move.from, kept);
  const NearestHolder nearest(space, move.from);
  for (std::int32_t to = 0; to < space.num_ranks(); ++to) {
    if (!space.in_side(move.to.side, to)) continue;
    const std::int64_t kept_here = same_mesh ? partial_coordinates(space, move.from, to, kept) : 0;
    const auto first = static_cast<std::ptrdiff_t>(traffic.pieces.size());
    visit_overlapping_boxes(boxes, to, 0, 0, [&](std::int64_t box) {
      for (std::int64_t contribution = 0; contribution < holders.contributions(); ++contribution) {
        if (holders.kept(contribution) != kept_here) continue;
        const std::int32_t from = nearest.of(holders.of(box, contribution), to);
        traffic.pieces.push_back(shared_piece(boxes, from, to));
      }
    });
    std::sort(traffic.pieces.begin() + first, traffic.pieces.end(),
              [](const Piece& a, const Piece& b) { return a.from < b.from; });
  }
}

void set_exchange_counts(const StateSpace& space, const StateMove& move, Traffic& traffic) {
  std::vector<bool> send_staged(traffic.ranks.size(), false), recv_staged(traffic.ranks.size(), false);
  for (const Piece& piece : traffic.pieces) {
    if (piece.from == piece.to) {
      traffic.ranks[idx(piece.to)].self_numel += piece.numel;
      continue;
    }
    ++traffic.ranks[idx(piece.from)].peers_out;
    ++traffic.ranks[idx(piece.to)].peers_in;
    if (!piece.from_contiguous) send_staged[idx(piece.from)] = true;
    if (!piece.to_contiguous) recv_staged[idx(piece.to)] = true;
  }
  // A piece that several receivers with the same box take from one sender is packed once.
  struct Packed {
    std::int32_t from;
    std::int64_t box, numel;
    auto operator<=>(const Packed&) const = default;
  };
  std::vector<Packed> packed;
  for (const Piece& piece : traffic.pieces) {
    if (piece.from == piece.to) continue;
    if (recv_staged[idx(piece.to)]) traffic.ranks[idx(piece.to)].recv_numel += piece.numel;
    if (send_staged[idx(piece.from)]) {
      packed.push_back({piece.from, box_number(space, move.to, piece.to), piece.numel});
    }
  }
  std::sort(packed.begin(), packed.end());
  packed.erase(std::unique(packed.begin(), packed.end()), packed.end());
  for (const Packed& piece : packed) traffic.ranks[idx(piece.from)].send_numel += piece.numel;
}

void find_exchange_axes(const StateSpace& space, const StateMove& move, Traffic& traffic) {
  traffic.axes.clear();
  const int side = move.from.side;
  if (side != move.to.side) return;
  for (const std::int8_t axis : space.axes(side)) {
    const bool crosses = std::any_of(traffic.pieces.begin(), traffic.pieces.end(), [&](const Piece& piece) {
      return space.coordinate(side, piece.from, axis) != space.coordinate(side, piece.to, axis);
    });
    if (crosses) traffic.axes.push_back(axis);
  }
}

// How far each piece goes inside the groups that the exchange's axes form.
void set_rounds(const StateSpace& space, const StateMove& move, Traffic& traffic) {
  const int side = move.from.side;
  const bool same_mesh = side == move.to.side;
  const auto index = [&](std::int32_t position) {
    if (!same_mesh) return std::int64_t{position};
    std::int64_t number = 0;
    for (const std::int8_t axis : traffic.axes) {
      number = number * space.axis_size(side, axis) + space.coordinate(side, position, axis);
    }
    return number;
  };
  std::int64_t size = same_mesh ? 1 : space.num_ranks();
  for (const std::int8_t axis : traffic.axes) size *= space.axis_size(side, axis);
  std::vector<bool> used(idx(size), false);
  for (Piece& piece : traffic.pieces) {
    piece.round = static_cast<std::int32_t>((index(piece.to) - index(piece.from) + size) % size);
    used[idx(piece.round)] = true;
  }
  for (std::int32_t round = 1; round < size; ++round) {
    if (used[idx(round)]) traffic.rounds.push_back(round);
  }
}

// Rounds reuse one staging area a side, as large as the largest piece.
void set_reduce_exchange_counts(Traffic& traffic) {
  const auto note = [](std::int32_t round, std::int32_t& first, std::int32_t& last) {
    first = first < 0 ? round : std::min(first, round);
    last = std::max(last, round);
  };
  for (const Piece& piece : traffic.pieces) {
    RankTraffic& receiver = traffic.ranks[idx(piece.to)];
    RankTraffic& sender = traffic.ranks[idx(piece.from)];
    if (piece.from == piece.to) {
      receiver.self_numel += piece.numel;
      continue;
    }
    ++sender.peers_out;
    ++receiver.peers_in;
    receiver.recv_numel = std::max(receiver.recv_numel, piece.numel);
    note(piece.round, receiver.first_arrival, receiver.last_arrival);
    if (piece.from_contiguous) {
      sender.last_direct_send = std::max(sender.last_direct_send, piece.round);
    } else {
      sender.send_numel = std::max(sender.send_numel, piece.numel);
      note(piece.round, sender.first_pack, sender.last_pack);
    }
  }
}

}  // namespace

std::int64_t box_number(const StateSpace& space, const State& state, std::int32_t position) {
  std::int64_t number = 0;
  for (int dim = 0; dim < space.num_dims(); ++dim) {
    const DimSpec& spec = space.spec(state, dim);
    number = number * spec.degree + spec.part_of[idx(position)];
  }
  return number;
}

std::int64_t partial_coordinates(const StateSpace& space, const State& state, std::int32_t position,
                                 AxisMask mask) {
  std::int64_t number = 0;
  for (const std::int8_t axis : space.axes(state.side)) {
    if ((mask >> axis & 1U) == 0) continue;
    number = number * space.axis_size(state.side, axis) + space.coordinate(state.side, position, axis);
  }
  return number;
}

Piece shared_piece(const BoxPair& boxes, std::int32_t from, std::int32_t to) {
  Piece piece{from, to, 1, 0, 0, true, true};
  std::int64_t from_stride = 1, to_stride = 1;
  bool from_full = true,
       to_full = true;  // the piece holds all of the box in every dimension looked at so far
  for (int d = boxes.num_dims - 1; d >= 0; --d) {
    const PairTable& dim = boxes.dim(d);
    const std::int32_t from_part = boxes.from_part(d, from), to_part = boxes.to_part(d, to);
    const Shared shared = dim.at(from_part, to_part);
    if (shared.numel == 0) return {from, to, 0, 0, 0, true, true};
    const std::int64_t old_size = dim.from().size(from_part), new_size = dim.to().size(to_part);
    if (!shared.contiguous || (!from_full && shared.numel > 1)) piece.from_contiguous = false;
    if (!shared.contiguous || (!to_full && shared.numel > 1)) piece.to_contiguous = false;
    from_full = from_full && shared.numel == old_size;
    to_full = to_full && shared.numel == new_size;
    piece.from_start += shared.from_start * from_stride;
    piece.to_start += shared.to_start * to_stride;
    from_stride *= old_size;
    to_stride *= new_size;
    piece.numel *= shared.numel;
  }
  return piece;
}

std::int64_t count_pieces(StateSpace& space, const StateMove& move, std::int64_t limit) {
  const BoxPair boxes = space.boxes(move.from, move.to);
  const bool same_mesh = move.from.side == move.to.side;
  // From each box comes one piece for each contribution that is reduced.
  std::int64_t contributions = 1;
  for (const std::int8_t axis : space.axes(move.from.side)) {
    const bool kept = same_mesh && (move.to.partial >> axis & 1U) != 0;
    if ((move.from.partial >> axis & 1U) != 0 && !kept)
      contributions *= space.axis_size(move.from.side, axis);
  }
  std::int64_t pieces = 0;
  for (std::int32_t to = 0; to < space.num_ranks() && pieces < limit; ++to) {
    if (!space.in_side(move.to.side, to)) continue;
    std::int64_t boxes_here = contributions;
    for (int d = 0; d < boxes.num_dims; ++d)
      boxes_here *= static_cast<std::int64_t>(boxes.dim(d).overlapping(boxes.to_part(d, to)).size());
    pieces += boxes_here;
  }
  return std::min(pieces, limit);
}

void find_traffic(StateSpace& space, const StateMove& move, bool with_axes, Traffic& traffic) {
  traffic.pieces.clear();
  traffic.axes.clear();
  traffic.rounds.clear();
  traffic.ranks.assign(idx(space.num_ranks()), {});
  const BoxPair boxes = space.boxes(move.from, move.to);
  for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
    if (space.in_side(move.from.side, p)) traffic.ranks[idx(p)].old_numel = boxes.old_numel(p);
    if (space.in_side(move.to.side, p)) traffic.ranks[idx(p)].new_numel = boxes.new_numel(p);
  }
  find_exchange(space, move, boxes, traffic);
  if (move.kind == MoveKind::reduce_exchange) {
    find_exchange_axes(space, move, traffic);
    set_rounds(space, move, traffic);
    set_reduce_exchange_counts(traffic);
  } else {
    if (with_axes) find_exchange_axes(space, move, traffic);
    set_exchange_counts(space, move, traffic);
  }
}

}  // namespace cp::detail
