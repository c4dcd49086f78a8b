// Traffic is what a move makes each rank send, receive and stage.
//
// Internal to shared/redistribute. This is the only place that decides who sends what to whom, whether pieces
// travel straight from and to the tensor's memory or through staging, and how large the staging is. The cost
// of a move and the plan that it becomes are both made from it, so that what is costed is what is executed
// (contract 7).
#pragma once

#include <cstdint>
#include <vector>

#include "shared/redistribute/redistribution.h"
#include "shared/redistribute/state_space.h"

namespace cp::detail {

// A move between two states of a space. `axes` are in the order in which the group's ranks count: the last
// one varies fastest.
struct StateMove {
  MoveKind kind = MoveKind::slice;
  AxisList axes;
  State from, to;
};

// The elements of rank `from`'s old shard that become part of rank `to`'s new one (in a reduction: that
// contribute to it).
struct Piece {
  std::int32_t from = 0, to = 0;  // positions in the space
  std::int64_t numel = 0;
  std::int64_t from_start = 0, to_start = 0;  // where it is in the shards' memory, if contiguous there
  bool from_contiguous = false, to_contiguous = false;
  std::int32_t round = 0;  // reduce_exchange: in a round each rank sends and receives at most one piece
};

struct RankTraffic {
  std::int64_t old_numel = 0, new_numel = 0;  // the shards before and after
  std::int64_t block = 0;       // elements of one block of an equal-count collective, with padding
  std::int64_t members = 0;     // ranks that share the collective, this one included
  std::int64_t self_numel = 0;  // stays on the rank
  std::int64_t send_numel = 0;  // staging from which pieces are sent; 0: straight from the old shard
  std::int64_t recv_numel = 0;  // staging into which they arrive; 0: straight into the new shard
  std::int32_t peers_out = 0, peers_in = 0;  // Exchange: how many ranks it sends to and receives from
  // For a reduce_exchange: the rounds between which memory is held; -1 if never.
  std::int32_t first_pack = -1, last_pack = -1;  // of pieces through the packed staging
  std::int32_t last_direct_send = -1;            // of pieces straight from the old shard
  std::int32_t first_arrival = -1, last_arrival = -1;
};

// The traffic of an exchange or a reduce_exchange.
struct Traffic {
  std::vector<Piece> pieces;       // by receiver, then by sender's position; own pieces included
  std::vector<RankTraffic> ranks;  // by position
  // The mesh axes along which pieces travel: only ranks that differ along these need to communicate. Empty
  // between meshes.
  AxisList axes;
  std::vector<std::int32_t> rounds;  // reduce_exchange: the rounds that have pieces, ascending
};

// The piece of rank `from`'s old box that rank `to`'s new box holds.
Piece shared_piece(const BoxPair& boxes, std::int32_t from, std::int32_t to);

// How many pieces an exchange has, own ones included, as far as they are fewer than `limit`. Found without
// listing them.
std::int64_t count_pieces(StateSpace& space, const StateMove& move, std::int64_t limit);

// Fills `traffic` (reusing its memory) for an exchange or a reduce_exchange. Its `axes` are found only if
// `with_axes` is set, or if rounds need them.
void find_traffic(StateSpace& space, const StateMove& move, bool with_axes, Traffic& traffic);

// Whether every rank does the same in the move: a collective between layouts whose shards are equally large
// everywhere, on one mesh.
bool ranks_are_alike(const StateSpace& space, const StateMove& move);

// For a collective with equal counts: what each member of the group does, in the group's order. Takes time in
// proportion to the members.
void find_group_traffic(StateSpace& space, const StateMove& move, const std::vector<std::int32_t>& members,
                        std::vector<RankTraffic>& traffic);
// The same for one rank. Takes no more time than that, and time in proportion to the axes only if ranks are
// alike.
RankTraffic group_traffic_of(StateSpace& space, const StateMove& move, std::int32_t position);

// Numbers the boxes of a state: ranks with equal numbers hold the same box.
std::int64_t box_number(const StateSpace& space, const State& state, std::int32_t position);

// The coordinates of a rank along the axes of the mask, as one number.
std::int64_t partial_coordinates(const StateSpace& space, const State& state, std::int32_t position,
                                 AxisMask mask);

// Whether the move is one collective with equal counts on all members (as against an Exchange or local work).
bool is_equal_count(MoveKind kind);

}  // namespace cp::detail
