#include "shared/redistribute/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/redistribute/piece_views.h"
#include "shared/redistribute/rounds.h"
#include "shared/redistribute/traffic.h"

namespace cp {
namespace {

using detail::AxisList;
using detail::Box;
using detail::Piece;
using detail::PieceViews;
using detail::RankTraffic;
using detail::StateMove;
using detail::StateSpace;
using detail::Traffic;

Box box_or_empty(const Layout& layout, Rank rank) {
  return layout.mesh.contains(rank) ? box(layout, rank) : Box(layout.shape.size());
}

std::string axes_name(const Mesh& mesh, const std::vector<int>& axes) {
  std::string text;
  for (const int axis : axes) text += str(text.empty() ? "" : "_", mesh.axes()[idx(axis)].name);
  return text;
}

// A shard on its way through the moves. In a chain each buffer is made from the one before, so that they
// alternate between the ends of the arena and leave no hole (Anchor in shared/plan/builder.h).
struct Held {
  BufferId buffer = -1;
  bool temporary = false;
  Anchor anchor = Anchor::high;
};

Anchor opposite(Anchor anchor) { return anchor == Anchor::low ? Anchor::high : Anchor::low; }

// Writes the steps of one move for one rank.
class MoveWriter {
 public:
  MoveWriter(PlanBuilder& builder, StreamId stream, Rank self, const RedistributionStep& step, DType dtype,
             PartialRule rule)
      : builder_(builder),
        stream_(stream),
        self_(self),
        move_(step.move),
        dtype_(dtype),
        rule_(rule),
        label_(str(name(move_.kind), " ", placements_to_string(move_.from), " -> ",
                   placements_to_string(move_.to))),
        space_(move_.from, move_.to, dtype),
        state_move_{move_.kind, space_.axes_of(0, move_.axes), space_.source(), space_.target()},
        position_(space_.position(self)) {
    // A plan is made for one rank among perhaps thousands. In a collective with equal counts a rank's own
    // traffic is all it needs. In an exchange the groups and rounds depend on what all ranks send, so all
    // traffic is found.
    if (detail::is_equal_count(move_.kind)) {
      if (space_.in_side(0, position_)) mine_ = detail::group_traffic_of(space_, state_move_, position_);
    } else if (move_.kind == MoveKind::exchange || move_.kind == MoveKind::reduce_exchange) {
      detail::find_traffic(space_, state_move_, true, traffic_);
      mine_ = traffic_.ranks[idx(position_)];
    } else {
      mine_.old_numel = space_.numel(state_move_.from, position_);
      mine_.new_numel = space_.numel(state_move_.to, position_);
    }
    from_box_ = box_or_empty(move_.from, self);
    to_box_ = box_or_empty(move_.to, self);
  }

  std::int64_t new_numel() const { return mine().new_numel; }

  // Where the result must lie so that every buffer of the chain lies opposite to the one it is made from.
  Anchor anchor_of_result(Anchor from) const {
    if (move_.kind == MoveKind::reduce_exchange)
      return detail::anchors_in_rounds(detail::lives_in_rounds(mine()), from).new_shard;
    // old shard -> (packed) -> (received) -> new shard: each arrow changes the end. With exactly one staging
    // buffer there are two arrows, and the new shard is back at the old one's end.
    const int staged = (mine().send_numel > 0 ? 1 : 0) + (mine().recv_numel > 0 ? 1 : 0);
    return staged == 1 ? from : opposite(from);
  }

  void write(Held from, Held to) {
    from_ = from;
    to_ = to;
    switch (move_.kind) {
      case MoveKind::slice:
        write_local(PieceViews(from_box_, to_box_));
        return;
      case MoveKind::to_partial:
        write_to_partial();
        return;
      case MoveKind::all_reduce:
        write_all_reduce();
        return;
      case MoveKind::all_gather:
      case MoveKind::all_to_all:
      case MoveKind::reduce_scatter:
        write_equal_counts();
        return;
      case MoveKind::exchange:
        write_exchange();
        return;
      case MoveKind::reduce_exchange:
        write_reduce_exchange();
        return;
    }
  }

 private:
  const RankTraffic& mine() const { return mine_; }
  Box box_of(const Layout& layout, std::int32_t position) const {
    return box_or_empty(layout, space_.rank(position));
  }

  void copy(View in, View out, std::string_view what) {
    builder_.add(stream_, Copy{std::move(in), std::move(out)}, str(label_, ": ", what));
  }

  BufferId staging(std::string_view what, std::int64_t numel, Anchor anchor) {
    return builder_.temporary(str(label_, ": ", what), dtype_, numel, anchor);
  }

  ReduceOp reduction() const {
    for (std::size_t axis = 0; axis < move_.from.placements.size(); ++axis) {
      const auto* partial = std::get_if<Partial>(&move_.from.placements[axis]);
      const bool reduced =
          std::find(move_.axes.begin(), move_.axes.end(), static_cast<int>(axis)) != move_.axes.end();
      if (partial != nullptr && move_.from.mesh.axis_size(static_cast<int>(axis)) > 1 &&
          (reduced || move_.axes.empty())) {
        return partial->op;
      }
    }
    return ReduceOp::sum;
  }

  // ---- local ----
  void write_local(const PieceViews& piece) {
    for (auto& block : piece.blocks(from_.buffer, to_.buffer, to_.buffer, 0)) {
      copy(std::move(block.from), std::move(block.to), "copy");
    }
  }

  void write_to_partial() {
    const std::int64_t numel = mine().new_numel;
    if (numel == 0) return;
    // A replicated value becomes n contributions that reduce to it. For a sum, the first rank keeps the value
    // and the others have zeros, or each has 1/n of it, as the rule says; for a product the others have ones.
    // For avg, min and max, copies are already right.
    bool keeps = true;
    double share = 1, neutral = 0;
    for (int axis = 0; axis < move_.to.mesh.num_axes(); ++axis) {
      const auto* partial = std::get_if<Partial>(&move_.to.placements[idx(axis)]);
      if (partial == nullptr || !std::holds_alternative<Replicate>(move_.from.placements[idx(axis)]))
        continue;
      const bool first = move_.to.mesh.coordinate(self_, axis) == 0;
      if (partial->op == ReduceOp::product) {
        keeps = keeps && first;
        neutral = 1;
      } else if (partial->op == ReduceOp::sum) {
        if (rule_ == PartialRule::first_keeps) keeps = keeps && first;
        if (rule_ == PartialRule::divide) share /= move_.to.mesh.axis_size(axis);
      }
    }
    const PieceViews own(from_box_, to_box_);
    if (!keeps || own.numel() < numel)
      builder_.add(stream_, Fill{flat_view(to_.buffer, 0, numel), neutral}, label_ + ": neutral");
    if (!keeps) return;
    write_local(own);
    if (share != 1) builder_.add(stream_, Scale{flat_view(to_.buffer, 0, numel), share}, label_ + ": share");
  }

  // ---- collectives with equal counts ----
  GroupId group_along(const AxisList& axes) {
    std::vector<std::int32_t> members;
    space_.members(state_move_.from.side, position_, axes, members);
    std::vector<Rank> ranks;
    ranks.reserve(members.size());
    for (const std::int32_t member : members) ranks.push_back(space_.rank(member));
    return builder_.group(axes_name(move_.from.mesh, space_.mesh_axes(state_move_.from.side, axes)),
                          std::move(ranks));
  }

  void write_all_reduce() {
    const std::int64_t numel = mine().new_numel;
    if (numel == 0) return;
    const View in = flat_view(from_.buffer, 0, numel), out = flat_view(to_.buffer, 0, numel);
    builder_.add(stream_, AllReduce{group_along(state_move_.axes), reduction(), in, out}, label_);
  }

  void write_equal_counts() {
    const RankTraffic& rank = mine();
    if (rank.block == 0) return;
    std::vector<std::int32_t> members;
    space_.members(state_move_.from.side, position_, state_move_.axes, members);
    // The library wants one dense block of the same size for each member. Shards that are such blocks already
    // are sent straight from where they are; others are packed first, and what is short of a block is filled
    // up with zeros, which nobody unpacks.
    const bool gathers = move_.kind == MoveKind::all_gather;
    const bool reduces = move_.kind == MoveKind::reduce_scatter;
    const std::int64_t send_size = gathers ? rank.block : rank.members * rank.block;
    const std::int64_t recv_size = reduces ? rank.block : rank.members * rank.block;

    BufferId send = from_.buffer;
    Anchor anchor = from_.anchor;
    if (rank.send_numel > 0) {
      anchor = opposite(anchor);
      send = staging("packed", send_size, anchor);
      if (gathers) {
        pad(send, rank.old_numel, rank.block);
        if (rank.old_numel > 0)
          copy(flat_view(from_.buffer, 0, rank.old_numel), flat_view(send, 0, rank.old_numel), "pack");
      } else {
        // Filled before packing, since the blocks' gaps lie between the packed pieces.
        if (rank.old_numel < send_size) pad(send, 0, send_size);
        for (std::size_t i = 0; i < members.size(); ++i) {
          pack(PieceViews(from_box_, box_of(move_.to, members[i])), send,
               static_cast<std::int64_t>(i) * rank.block);
        }
      }
    }
    BufferId recv = to_.buffer;
    if (rank.recv_numel > 0) recv = staging("received", recv_size, opposite(anchor));
    add_collective(flat_view(send, 0, send_size), flat_view(recv, 0, recv_size));
    if (rank.recv_numel == 0) return;
    if (reduces) {
      if (rank.new_numel > 0)
        copy(flat_view(recv, 0, rank.new_numel), flat_view(to_.buffer, 0, rank.new_numel), "unpack");
      return;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      unpack(PieceViews(box_of(move_.from, members[i]), to_box_), recv,
             static_cast<std::int64_t>(i) * rank.block);
    }
  }

  void add_collective(View in, View out) {
    const GroupId group = group_along(state_move_.axes);
    if (move_.kind == MoveKind::all_gather) {
      builder_.add(stream_, AllGather{group, std::move(in), std::move(out)}, label_);
    } else if (move_.kind == MoveKind::all_to_all) {
      builder_.add(stream_, AllToAll{group, std::move(in), std::move(out)}, label_);
    } else {
      builder_.add(stream_, ReduceScatter{group, reduction(), std::move(in), std::move(out)}, label_);
    }
  }

  void pad(BufferId buffer, std::int64_t begin, std::int64_t end) {
    if (begin < end)
      builder_.add(stream_, Fill{flat_view(buffer, begin, end - begin), 0}, label_ + ": padding");
  }
  void pack(const PieceViews& piece, BufferId send, std::int64_t offset) {
    for (auto& block : piece.blocks(from_.buffer, to_.buffer, send, offset)) {
      copy(std::move(block.from), std::move(block.dense), "pack");
    }
  }
  void unpack(const PieceViews& piece, BufferId recv, std::int64_t offset) {
    for (auto& block : piece.blocks(from_.buffer, to_.buffer, recv, offset)) {
      copy(std::move(block.dense), std::move(block.to), "unpack");
    }
  }

  // ---- exchanges ----
  // The group that has to talk, and this rank's way to write positions as indices in it.
  GroupId exchange_group(std::map<std::int32_t, std::int32_t>& index_of) {
    std::vector<std::int32_t> members;
    std::string group_name;
    if (state_move_.from.side == state_move_.to.side) {
      space_.members(state_move_.from.side, position_, traffic_.axes, members);
      group_name = axes_name(move_.from.mesh, space_.mesh_axes(state_move_.from.side, traffic_.axes));
    } else {
      for (std::int32_t p = 0; p < space_.num_ranks(); ++p) members.push_back(p);
      group_name = "meshes";
    }
    std::vector<Rank> ranks;
    for (std::size_t i = 0; i < members.size(); ++i) {
      index_of.emplace(members[i], static_cast<std::int32_t>(i));
      ranks.push_back(space_.rank(members[i]));
    }
    return builder_.group(std::move(group_name), std::move(ranks));
  }

  bool anything_travels() const {
    return std::any_of(traffic_.pieces.begin(), traffic_.pieces.end(),
                       [](const Piece& p) { return p.from != p.to; });
  }

  PieceViews views_of(const Piece& piece) const {
    return PieceViews(box_of(move_.from, piece.from), box_of(move_.to, piece.to));
  }

  void write_exchange() {
    // What stays goes straight from shard to shard; between two temporaries it takes the way of the staging,
    // so that never more than two buffers of the chain are alive.
    const bool chained = from_.temporary && to_.temporary;
    const RankTraffic& rank = mine();
    const PieceViews own = PieceViews(from_box_, to_box_);
    const bool has_own = rank.self_numel > 0;
    if (!anything_travels()) {
      if (has_own) write_local(own);
      return;
    }
    std::map<std::int32_t, std::int32_t> index_of;
    Exchange exchange;
    exchange.group = exchange_group(index_of);
    if (has_own && !chained && !to_.temporary) write_local(own);

    Anchor anchor = from_.anchor;
    BufferId send = from_.buffer, recv = to_.buffer;
    const bool packs = rank.send_numel > 0, unpacks = rank.recv_numel > 0;
    const std::int64_t own_staged = chained && has_own ? rank.self_numel : 0;
    if (packs) {
      anchor = opposite(anchor);
      send = staging("packed", rank.send_numel + own_staged, anchor);
    }
    if (unpacks) recv = staging("received", rank.recv_numel + own_staged, opposite(anchor));

    std::vector<std::pair<PieceViews, std::int64_t>> arrivals;  // with their place in the staging
    std::vector<Count> counts;
    std::map<std::int64_t, std::int64_t> packed_at;  // receiver's box → place in the staging
    std::int64_t packed = 0, received = 0;
    for (const Piece& piece : traffic_.pieces) {
      if (piece.from == piece.to || !index_of.contains(piece.from)) continue;
      const std::int32_t from = index_of.at(piece.from), to = index_of.at(piece.to);
      counts.push_back({from, to, piece.numel});
      if (piece.from == position_) {
        std::int64_t offset = piece.from_start;
        if (packs) {
          // Ranks that hold copies of the new shard get the same piece: it is packed once and sent to each.
          const auto [place, added] =
              packed_at.try_emplace(detail::box_number(space_, state_move_.to, piece.to), packed);
          if (added) {
            pack(views_of(piece), send, packed);
            packed += piece.numel;
          }
          offset = place->second;
        }
        exchange.sends.push_back({to, flat_view(send, offset, piece.numel)});
      } else if (piece.to == position_) {
        exchange.recvs.push_back({from, flat_view(recv, unpacks ? received : piece.to_start, piece.numel)});
        if (unpacks) arrivals.emplace_back(views_of(piece), received);
        received += piece.numel;
      }
    }
    if (own_staged > 0 && packs) pack(own, send, packed);
    exchange.counts = counts_digest(std::move(counts));
    builder_.add(stream_, std::move(exchange), label_);
    if (own_staged > 0) pass_own(own, packs ? send : -1, packed, unpacks ? recv : -1, received);
    for (const auto& [views, offset] : arrivals) unpack(views, recv, offset);
    if (has_own && !chained && to_.temporary) write_local(own);
  }

  // The own piece of a chain: from the packed staging or the old shard into the received staging or the new
  // shard.
  void pass_own(const PieceViews& own, BufferId send, std::int64_t packed, BufferId recv,
                std::int64_t received) {
    const auto sources = own.blocks(from_.buffer, to_.buffer, send, packed);
    const auto sinks = own.blocks(from_.buffer, to_.buffer, recv, received);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      copy(send < 0 ? sources[i].from : sources[i].dense, recv < 0 ? sinks[i].to : sinks[i].dense,
           "own part");
    }
    if (recv >= 0) unpack(own, recv, received);
  }

  void write_reduce_exchange() {
    const ReduceOp op = reduction();
    // An average is added up like a sum and divided once at the end, so that it is rounded once.
    const ReduceOp step_op = op == ReduceOp::avg ? ReduceOp::sum : op;
    const RankTraffic& rank = mine();
    std::map<std::int32_t, std::int32_t> index_of;
    const GroupId group = exchange_group(index_of);
    // Boxes of old shards whose part of the result holds its first contribution. Contributions of equal boxes
    // cover the same elements, those of different boxes none in common: so the first of each box is copied,
    // the others are added to it, and nothing has to be zeroed before.
    std::set<std::int64_t> started;
    if (rank.self_numel > 0) {
      write_local(PieceViews(from_box_, to_box_));
      started.insert(detail::box_number(space_, state_move_.from, position_));
    }
    const detail::RoundAnchors anchors =
        detail::anchors_in_rounds(detail::lives_in_rounds(rank), from_.anchor);
    const BufferId send = rank.send_numel > 0 ? staging("packed", rank.send_numel, anchors.packed) : -1;
    const BufferId recv = rank.recv_numel > 0 ? staging("received", rank.recv_numel, anchors.received) : -1;
    std::map<std::int32_t, std::vector<const Piece*>> pieces_of;  // by round, of the group
    for (const Piece& piece : traffic_.pieces) {
      if (piece.from != piece.to && index_of.contains(piece.from)) pieces_of[piece.round].push_back(&piece);
    }
    for (const std::int32_t round : traffic_.rounds) {
      Exchange exchange;
      exchange.group = group;
      std::vector<Count> counts;
      const Piece* arrival = nullptr;
      for (const Piece* next : pieces_of[round]) {
        const Piece& piece = *next;
        counts.push_back({index_of.at(piece.from), index_of.at(piece.to), piece.numel});
        if (piece.from == position_) {
          // A rank sends and receives at most one piece in a round, so that one staging buffer for each
          // direction is enough: round by round they are used again.
          if (!piece.from_contiguous) pack(views_of(piece), send, 0);
          exchange.sends.push_back(
              {index_of.at(piece.to), piece.from_contiguous
                                          ? flat_view(from_.buffer, piece.from_start, piece.numel)
                                          : flat_view(send, 0, piece.numel)});
        } else if (piece.to == position_) {
          exchange.recvs.push_back({index_of.at(piece.from), flat_view(recv, 0, piece.numel)});
          arrival = next;
        }
      }
      exchange.counts = counts_digest(std::move(counts));
      builder_.add(stream_, std::move(exchange), str(label_, ": round ", round));
      if (arrival == nullptr) continue;
      const bool first = started.insert(detail::box_number(space_, state_move_.from, arrival->from)).second;
      for (auto& block : views_of(*arrival).blocks(from_.buffer, to_.buffer, recv, 0)) {
        if (first) {
          copy(std::move(block.dense), std::move(block.to), "first contribution");
        } else {
          builder_.add(stream_, Accumulate{step_op, std::move(block.dense), std::move(block.to)},
                       label_ + ": accumulate");
        }
      }
    }
    if (op == ReduceOp::avg && rank.new_numel > 0) {
      builder_.add(stream_, Scale{flat_view(to_.buffer, 0, rank.new_numel), 1 / contributions()},
                   label_ + ": average");
    }
  }

  double contributions() const {
    double ranks = 1;
    for (std::size_t axis = 0; axis < move_.from.placements.size(); ++axis) {
      // An axis that is Partial before and after the move is not reduced by it.
      const bool stays = state_move_.from.side == state_move_.to.side && move_.to.mesh == move_.from.mesh &&
                         std::holds_alternative<Partial>(move_.to.placements[axis]);
      if (std::holds_alternative<Partial>(move_.from.placements[axis]) && !stays) {
        ranks *= move_.from.mesh.axis_size(static_cast<int>(axis));
      }
    }
    return ranks;
  }

  PlanBuilder& builder_;
  StreamId stream_;
  Rank self_;
  const Move& move_;
  DType dtype_;
  PartialRule rule_;
  std::string label_;
  StateSpace space_;
  StateMove state_move_;
  std::int32_t position_;
  Traffic traffic_;  // of an exchange
  RankTraffic mine_;
  Box from_box_, to_box_;
  Held from_, to_;
};

std::int64_t shard_numel(const Layout& layout, Rank rank) {
  return layout.mesh.contains(rank) ? local_numel(layout, rank) : 0;
}

void add_cast(PlanBuilder& builder, StreamId stream, BufferId in, BufferId out, std::int64_t numel,
              std::string label) {
  if (numel > 0)
    builder.add(stream, Cast{flat_view(in, 0, numel), flat_view(out, 0, numel)}, std::move(label));
}

}  // namespace

void append_redistribution(PlanBuilder& builder, StreamId stream, Rank self, const Redistribution& r,
                           BufferId input, BufferId output) {
  const bool casts_before = r.source.dtype != r.travel_dtype && !r.steps.empty();
  const bool casts_after = r.target.dtype != r.travel_dtype && !r.steps.empty();
  const std::int64_t before = shard_numel(r.source, self), after = shard_numel(r.target, self);
  if (r.steps.empty()) {
    if (before == 0) return;
    if (r.source.dtype != r.target.dtype) return add_cast(builder, stream, input, output, before, "cast");
    builder.add(stream, Copy{flat_view(input, 0, before), flat_view(output, 0, before)}, "same layout: copy");
    return;
  }
  Held current{input, false, Anchor::high};
  if (casts_before) {
    current = {builder.temporary("cast input", r.travel_dtype, before, Anchor::low), true, Anchor::low};
    add_cast(builder, stream, input, current.buffer, before, str("cast to ", name(r.travel_dtype)));
  }
  for (std::size_t i = 0; i < r.steps.size(); ++i) {
    const Move& move = r.steps[i].move;
    if (!move.from.mesh.contains(self) && !move.to.mesh.contains(self))
      continue;  // happens on the other mesh
    MoveWriter writer(builder, stream, self, r.steps[i], r.travel_dtype, r.partial_rule);
    const bool last = i + 1 == r.steps.size();
    Held next{output, false, Anchor::low};
    if (!last || casts_after) {
      // An AllReduce may write where it reads. The caller's input must stay as it is, so only a temporary is
      // reduced in place.
      const bool in_place = r.steps[i].move.kind == MoveKind::all_reduce && current.temporary;
      if (in_place) {
        next = current;
      } else {
        next.temporary = true;
        next.anchor = writer.anchor_of_result(current.anchor);
        next.buffer =
            builder.temporary(str("shard ", i + 1), r.travel_dtype, writer.new_numel(), next.anchor);
      }
    }
    writer.write(current, next);
    current = next;
  }
  if (casts_after)
    add_cast(builder, stream, current.buffer, output, after, str("cast to ", name(r.target.dtype)));
}

Plan lower(const Redistribution& redistribution, Rank self, const Target& target) {
  PlanBuilder builder(self, target);
  const StreamId stream = builder.stream("main");
  const BufferId input =
      builder.input("input", redistribution.source.dtype, shard_numel(redistribution.source, self));
  const BufferId output =
      builder.output("output", redistribution.target.dtype, shard_numel(redistribution.target, self));
  append_redistribution(builder, stream, self, redistribution, input, output);
  return std::move(builder).build(redistribution.inputs);
}

std::vector<Plan> lower_all(const Redistribution& redistribution, const Target& target) {
  std::set<Rank> ranks(redistribution.source.mesh.ranks().begin(), redistribution.source.mesh.ranks().end());
  ranks.insert(redistribution.target.mesh.ranks().begin(), redistribution.target.mesh.ranks().end());
  std::vector<Plan> plans;
  for (const Rank rank : ranks) plans.push_back(lower(redistribution, rank, target));
  return plans;
}

}  // namespace cp
