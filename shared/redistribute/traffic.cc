#include "shared/redistribute/traffic.h"

#include <algorithm>
#include <span>
#include <utility>

namespace cp::detail {
namespace {

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

// Which ranks hold the same values of the same box before a move, so that any one of them can be the source: looked up by the
// number of the box and the coordinates along the partial axes.
class Holders {
 public:
  Holders(const LayoutSpace& space, const State& state, unsigned kept_axes) {
    for (int dim = 0; dim < space.num_dims(); ++dim) boxes_ *= space.spec(state, dim).degree;
    for (const std::int8_t axis : space.axes(state.side)) {
      if ((state.partial >> axis & 1) != 0) contributions_ *= space.axis_size(state.side, axis);
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

// The receiver itself; else the holder whose coordinates agree with the receiver's on the slowest axes that they can (meshes
// are written from the slowest axis to the fastest); ties are dealt round-robin over the receivers.
std::int32_t nearest(const LayoutSpace& space, int side, std::span<const std::int32_t> holders,
                     std::int32_t receiver) {
  if (holders.size() == 1) return holders.front();
  // One bit for each axis on which they agree, the slowest axis highest.
  const auto agreement = [&](std::int32_t holder) {
    std::uint32_t bits = 0;
    if (!space.in_side(side, receiver)) return bits;
    for (const std::int8_t axis : space.axes(side)) {
      const bool agree = space.coordinate(side, holder, axis) == space.coordinate(side, receiver, axis);
      bits = bits << 1U | (agree ? 1U : 0U);
    }
    return bits;
  };
  std::uint32_t best = 0;
  std::int64_t equals = 0;
  for (const std::int32_t holder : holders) {
    const std::uint32_t bits = agreement(holder);
    if (bits > best) equals = 0;
    best = std::max(best, bits);
    if (bits == best) ++equals;
  }
  std::int64_t choice = receiver % equals;
  for (const std::int32_t holder : holders) {
    if (agreement(holder) == best && choice-- == 0) return holder;
  }
  return holders.front();
}

// Calls visit(number) for each old box that shares something with rank `to`'s new one.
template <class Visit>
void visit_overlapping_boxes(const LayoutSpace& space, const State& from, const BoxPair& boxes,
                             std::int32_t to, int dim, std::int64_t number, const Visit& visit) {
  if (dim == boxes.num_dims) {
    visit(number);
    return;
  }
  const BoxPair::Dim& d = boxes.dims[idx(dim)];
  const std::int32_t part = d.to_part[to];
  const std::int64_t degree = space.spec(from, dim).degree;
  for (std::int32_t i = d.table->first[idx(part)]; i < d.table->first[idx(part) + 1]; ++i) {
    visit_overlapping_boxes(space, from, boxes, to, dim + 1, number * degree + d.table->overlapping[idx(i)],
                            visit);
  }
}

void find_exchange(const LayoutSpace& space, const StateMove& move, const BoxPair& boxes, Traffic& traffic) {
  const bool same_mesh = move.from.side == move.to.side;
  const unsigned kept = same_mesh ? move.from.partial & move.to.partial : 0U;
  const Holders holders(space, move.from, kept);
  for (std::int32_t to = 0; to < space.num_ranks(); ++to) {
    if (!space.in_side(move.to.side, to)) continue;
    const std::int64_t kept_here = same_mesh ? partial_coordinates(space, move.from, to, kept) : 0;
    const auto first = static_cast<std::ptrdiff_t>(traffic.pieces.size());
    visit_overlapping_boxes(space, move.from, boxes, to, 0, 0, [&](std::int64_t box) {
      for (std::int64_t contribution = 0; contribution < holders.contributions(); ++contribution) {
        if (holders.kept(contribution) != kept_here) continue;
        const std::int32_t from = nearest(space, move.from.side, holders.of(box, contribution), to);
        traffic.pieces.push_back(shared_piece(boxes, from, to));
      }
    });
    std::sort(traffic.pieces.begin() + first, traffic.pieces.end(),
              [](const Piece& a, const Piece& b) { return a.from < b.from; });
  }
}

void find_group_pieces(const LayoutSpace& space, const StateMove& move, const BoxPair& boxes,
                       Traffic& traffic, std::int32_t only) {
  std::vector<std::int32_t> group;
  for (std::int32_t to = 0; to < space.num_ranks(); ++to) {
    if (!space.in_side(move.to.side, to)) continue;
    if (only >= 0 && to != only) continue;
    space.members(move.from.side, to, move.axes, group);
    for (const std::int32_t from : group) traffic.pieces.push_back(shared_piece(boxes, from, to));
    traffic.ranks[idx(to)].members = static_cast<std::int64_t>(group.size());
    if (only < 0) continue;
    for (const std::int32_t peer : group) {  // what it sends tells how its old shard must lie
      if (peer != only) traffic.pieces.push_back(shared_piece(boxes, only, peer));
    }
  }
}

// The block of the collective: what its largest member needs, known to all of them.
void set_blocks(LayoutSpace& space, const StateMove& move, Traffic& traffic, std::int32_t only) {
  const bool even = only >= 0;  // every member has the same
  if (even) {
    RankTraffic& rank = traffic.ranks[idx(only)];
    for (const Piece& piece : traffic.pieces) rank.block = std::max(rank.block, piece.numel);
    return;
  }
  std::vector<std::int64_t> largest(traffic.ranks.size(), 0);
  for (const Piece& piece : traffic.pieces)
    largest[idx(piece.to)] = std::max(largest[idx(piece.to)], piece.numel);
  std::vector<std::int32_t> group;
  for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
    if (!space.in_side(move.from.side, p)) continue;
    space.members(move.from.side, p, move.axes, group);
    for (const std::int32_t member : group) {
      traffic.ranks[idx(p)].block = std::max(traffic.ranks[idx(p)].block, largest[idx(member)]);
    }
  }
}

// Which ranks can do without staging: their blocks lie in the tensor's memory just as the collective wants
// them.
void set_group_staging(LayoutSpace& space, const StateMove& move, Traffic& traffic, std::int32_t only) {
  std::vector<bool> old_direct(traffic.ranks.size(), true), new_direct(traffic.ranks.size(), true);
  std::vector<std::int32_t> next_block(traffic.ranks.size(), 0);
  std::vector<std::int32_t> group;
  std::int32_t current = -1;
  std::int32_t own_index = 0;
  const auto view_receiver = [&](std::int32_t to) {
    if (to == current) return;
    current = to;
    space.members(move.from.side, to, move.axes, group);
    own_index = static_cast<std::int32_t>(std::find(group.begin(), group.end(), to) - group.begin());
  };
  for (const Piece& piece : traffic.pieces) {
    view_receiver(piece.to);
    const std::int64_t block = traffic.ranks[idx(only < 0 ? piece.to : only)].block;
    const bool full = piece.numel == block;
    const std::int64_t in_block = std::int64_t{own_index} * block;
    const std::int64_t out_block = std::int64_t{next_block[idx(piece.to)]++} * block;
    if (!full || !piece.from_contiguous || piece.from_start != in_block) old_direct[idx(piece.from)] = false;
    if (!full || !piece.to_contiguous || piece.to_start != out_block) new_direct[idx(piece.to)] = false;
  }
  for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
    if (only >= 0 && p != only) continue;
    RankTraffic& rank = traffic.ranks[idx(p)];
    if (rank.members == 0) continue;
    const std::int64_t all_blocks = rank.members * rank.block;
    const bool gathers = move.kind == MoveKind::all_gather;
    const bool reduces = move.kind == MoveKind::reduce_scatter;
    const std::int64_t send = gathers ? rank.block : all_blocks;
    const std::int64_t recv = reduces ? rank.block : all_blocks;
    const bool send_direct = rank.old_numel == send && (gathers || old_direct[idx(p)]);
    const bool recv_direct = rank.new_numel == recv && (reduces || new_direct[idx(p)]);
    rank.send_numel = send_direct ? 0 : send;
    rank.recv_numel = recv_direct ? 0 : recv;
  }
}

void set_exchange_counts(const LayoutSpace& space, const StateMove& move, Traffic& traffic) {
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

// How far each piece goes inside the groups that the exchange's axes form.
void set_rounds(const LayoutSpace& space, const StateMove& move, Traffic& traffic) {
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

std::int64_t box_number(const LayoutSpace& space, const State& state, std::int32_t position) {
  std::int64_t number = 0;
  for (int dim = 0; dim < space.num_dims(); ++dim) {
    const DimSpec& spec = space.spec(state, dim);
    number = number * spec.degree + spec.part_of[idx(position)];
  }
  return number;
}

std::int64_t partial_coordinates(const LayoutSpace& space, const State& state, std::int32_t position,
                                 unsigned mask) {
  std::int64_t number = 0;
  for (const std::int8_t axis : space.axes(state.side)) {
    if ((mask >> axis & 1U) == 0) continue;
    number = number * space.axis_size(state.side, axis) + space.coordinate(state.side, position, axis);
  }
  return number;
}

void find_exchange_axes(const LayoutSpace& space, const StateMove& move, Traffic& traffic) {
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

bool is_equal_count(MoveKind kind) {
  return kind == MoveKind::all_gather || kind == MoveKind::all_to_all || kind == MoveKind::reduce_scatter ||
         kind == MoveKind::all_reduce;
}

Piece shared_piece(const BoxPair& boxes, std::int32_t from, std::int32_t to) {
  Piece piece{from, to, 1, 0, 0, true, true};
  std::int64_t from_stride = 1, to_stride = 1;
  bool from_full = true,
       to_full = true;  // the piece holds all of the box in every dimension looked at so far
  for (int d = boxes.num_dims - 1; d >= 0; --d) {
    const BoxPair::Dim& dim = boxes.dims[idx(d)];
    const Shared& shared = dim.table->at(dim.from_part[from], dim.to_part[to]);
    if (shared.numel == 0) return {from, to, 0, 0, 0, true, true};
    const std::int64_t old_size = dim.from_sizes[dim.from_part[from]];
    const std::int64_t new_size = dim.to_sizes[dim.to_part[to]];
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

void find_traffic(LayoutSpace& space, const StateMove& move, Traffic& traffic, std::int32_t only) {
  traffic.pieces.clear();
  traffic.axes.clear();
  traffic.rounds.clear();
  traffic.ranks.assign(idx(space.num_ranks()), {});
  const BoxPair boxes = space.boxes(move.from, move.to);
  for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
    if (only >= 0 && p != only) continue;
    if (space.in_side(move.from.side, p)) traffic.ranks[idx(p)].old_numel = boxes.old_numel(p);
    if (space.in_side(move.to.side, p)) traffic.ranks[idx(p)].new_numel = boxes.new_numel(p);
  }
  switch (move.kind) {
    case MoveKind::slice:
    case MoveKind::to_partial:
      break;
    case MoveKind::all_gather:
    case MoveKind::all_to_all:
    case MoveKind::reduce_scatter:
      find_group_pieces(space, move, boxes, traffic, only);
      set_blocks(space, move, traffic, only);
      set_group_staging(space, move, traffic, only);
      break;
    case MoveKind::all_reduce: {
      std::int64_t members = 1;
      for (const std::int8_t axis : move.axes) members *= space.axis_size(move.from.side, axis);
      for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
        if (!space.in_side(move.from.side, p)) continue;
        traffic.ranks[idx(p)].members = members;
        traffic.ranks[idx(p)].block = traffic.ranks[idx(p)].new_numel;
      }
      break;
    }
    case MoveKind::exchange:
      find_exchange(space, move, boxes, traffic);
      set_exchange_counts(space, move, traffic);
      break;
    case MoveKind::reduce_exchange:
      find_exchange(space, move, boxes, traffic);
      find_exchange_axes(space, move, traffic);
      set_rounds(space, move, traffic);
      set_reduce_exchange_counts(traffic);
      break;
  }
}

}  // namespace cp::detail
