// Collectives with equal counts: what each member of a group sends, receives and stages.
#include <algorithm>
#include <array>
#include <optional>

#include "shared/base/index.h"
#include "shared/redistribute/traffic.h"

namespace cp::detail {
namespace {

// One group of a collective with equal counts. Its members' old boxes differ in the dimensions that the
// group's axes leave, their new ones in those that they come to; all else is the same for all of them. So the
// piece of members i and j is as large as |old i| x |new j| divided by what they share, the largest is that
// of the largest old box and the largest new one, and where pieces lie in a shard depends on its own size and
// on whether its part is one stretch, and not on whose it is: one member of each kind stands for the others.
class Group {
 public:
  Group(const StateMove& move, const BoxPair& boxes, const std::vector<std::int32_t>& members)
      : kind_(move.kind), boxes_(boxes), members_(members), size_(static_cast<std::int64_t>(members.size())) {
    for (const std::int32_t member : members) {
      old_.push_back(boxes.old_numel(member));
      new_.push_back(boxes.new_numel(member));
    }
    if (kind_ == MoveKind::all_reduce) {
      block_ = new_.front();
    } else if (kind_ == MoveKind::all_gather) {
      block_ = *std::max_element(old_.begin(), old_.end());
    } else if (kind_ == MoveKind::reduce_scatter) {
      block_ = *std::max_element(new_.begin(), new_.end());
    } else {
      const auto from = std::max_element(old_.begin(), old_.end()) - old_.begin();
      const auto to = std::max_element(new_.begin(), new_.end()) - new_.begin();
      block_ = boxes.shared_numel(members[idx(from)], members[idx(to)]);
    }
  }

  RankTraffic of(std::size_t member) {
    RankTraffic rank;
    rank.old_numel = old_[member];
    rank.new_numel = new_[member];
    rank.members = size_;
    rank.block = block_;
    if (kind_ == MoveKind::all_reduce) return rank;
    const bool gathers = kind_ == MoveKind::all_gather, reduces = kind_ == MoveKind::reduce_scatter;
    const std::int64_t send = gathers ? block_ : size_ * block_, recv = reduces ? block_ : size_ * block_;
    const bool send_direct = rank.old_numel == send && (gathers || old_lies_in_blocks(member));
    const bool recv_direct = rank.new_numel == recv && (reduces || new_lies_in_blocks(member));
    rank.send_numel = send_direct ? 0 : send;
    rank.recv_numel = recv_direct ? 0 : recv;
    return rank;
  }

 private:
  // Kinds of members with shards of the right size: their piece for the first member is one stretch, or is
  // not.
  bool old_lies_in_blocks(std::size_t member) {
    std::optional<bool>& known = old_direct_[in_one_stretch(member, 0) ? 1 : 0];
    if (!known) {
      known = every_piece_fits([&](std::size_t peer) {
        const Piece piece = shared_piece(boxes_, members_[member], members_[peer]);
        return piece.numel == block_ && piece.from_contiguous &&
               piece.from_start == static_cast<std::int64_t>(peer) * block_;
      });
    }
    return *known;
  }
  bool new_lies_in_blocks(std::size_t member) {
    std::optional<bool>& known = new_direct_[in_one_stretch(0, member) ? 1 : 0];
    if (!known) {
      known = every_piece_fits([&](std::size_t peer) {
        const Piece piece = shared_piece(boxes_, members_[peer], members_[member]);
        return piece.numel == block_ && piece.to_contiguous &&
               piece.to_start == static_cast<std::int64_t>(peer) * block_;
      });
    }
    return *known;
  }
  bool in_one_stretch(std::size_t from, std::size_t to) const {
    for (int d = 0; d < boxes_.num_dims; ++d) {
      const Shared shared =
          boxes_.dim(d).at(boxes_.from_part(d, members_[from]), boxes_.to_part(d, members_[to]));
      if (shared.numel > 0 && !shared.contiguous) return false;
    }
    return true;
  }
  template <class Fits>
  bool every_piece_fits(const Fits& fits) const {
    for (std::size_t peer = 0; peer < members_.size(); ++peer) {
      if (!fits(peer)) return false;
    }
    return true;
  }

  MoveKind kind_;
  const BoxPair& boxes_;
  const std::vector<std::int32_t>& members_;
  std::int64_t size_, block_ = 0;
  std::vector<std::int64_t> old_, new_;  // numels by member
  std::array<std::optional<bool>, 2> old_direct_, new_direct_;
};

// Where all parts are ranges of one size, pieces begin at a sum of one term for each coordinate of the peer:
// where the pieces of the first peer and of the second along each axis lie right, all do.
bool even_pieces_lie_in_blocks(const StateSpace& space, const StateMove& move, const BoxPair& boxes,
                               std::int32_t position, std::int64_t block, bool sends) {
  const auto fits = [&](std::int32_t peer, std::int64_t number) {
    const Piece piece = sends ? shared_piece(boxes, position, peer) : shared_piece(boxes, peer, position);
    return piece.numel == block && (sends ? piece.from_contiguous : piece.to_contiguous) &&
           (sends ? piece.from_start : piece.to_start) == number * block;
  };
  const int side = move.from.side;
  const std::int32_t first = space.moved_to_first(side, position, move.axes);
  if (!fits(first, 0)) return false;
  std::int64_t number = 1;
  for (std::size_t i = move.axes.size(); i-- > 0;) {
    const std::int8_t axis = move.axes[i];
    if (!fits(space.neighbour(side, first, axis), number)) return false;
    number *= space.axis_size(side, axis);
  }
  return true;
}

RankTraffic even_traffic_of(const StateSpace& space, const StateMove& move, const BoxPair& boxes,
                            std::int32_t position) {
  RankTraffic rank;
  rank.old_numel = boxes.old_numel(position);
  rank.new_numel = boxes.new_numel(position);
  rank.members = 1;
  for (const std::int8_t axis : move.axes) rank.members *= space.axis_size(move.from.side, axis);
  if (move.kind == MoveKind::all_reduce) {
    rank.block = rank.new_numel;
    return rank;
  }
  const bool gathers = move.kind == MoveKind::all_gather, reduces = move.kind == MoveKind::reduce_scatter;
  rank.block = gathers ? rank.old_numel : reduces ? rank.new_numel : rank.old_numel / rank.members;
  const bool send_direct =
      gathers || even_pieces_lie_in_blocks(space, move, boxes, position, rank.block, true);
  const bool recv_direct =
      reduces || even_pieces_lie_in_blocks(space, move, boxes, position, rank.block, false);
  rank.send_numel = send_direct ? 0 : rank.members * rank.block;
  rank.recv_numel = recv_direct ? 0 : rank.members * rank.block;
  return rank;
}

}  // namespace

bool is_equal_count(MoveKind kind) {
  return kind == MoveKind::all_gather || kind == MoveKind::all_to_all || kind == MoveKind::reduce_scatter ||
         kind == MoveKind::all_reduce;
}

bool ranks_are_alike(const StateSpace& space, const StateMove& move) {
  return is_equal_count(move.kind) && space.num_ranks() == space.mesh(move.from.side).size() &&
         space.is_even(move.from) && space.is_even(move.to);
}

void find_group_traffic(StateSpace& space, const StateMove& move, const std::vector<std::int32_t>& members,
                        std::vector<RankTraffic>& traffic) {
  const BoxPair boxes = space.boxes(move.from, move.to);
  Group group(move, boxes, members);
  traffic.clear();
  for (std::size_t i = 0; i < members.size(); ++i) traffic.push_back(group.of(i));
}

RankTraffic group_traffic_of(StateSpace& space, const StateMove& move, std::int32_t position) {
  const BoxPair boxes = space.boxes(move.from, move.to);
  if (space.is_even(move.from) && space.is_even(move.to))
    return even_traffic_of(space, move, boxes, position);
  std::vector<std::int32_t> members;
  space.members(move.from.side, position, move.axes, members);
  Group group(move, boxes, members);
  return group.of(idx(std::find(members.begin(), members.end(), position) - members.begin()));
}

}  // namespace cp::detail
