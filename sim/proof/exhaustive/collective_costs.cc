// slice, all_reduce, and the collectives with equal counts.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/proof/exhaustive/cost_rules.h"

namespace cp::sim {

namespace {

// What the old shard of one rank and the new one of another share, and where it lies in both.
struct Piece {
  std::int64_t size = 0;
  std::int64_t first_in_old = 0, first_in_new = 0;
  bool contiguous_in_old = true, contiguous_in_new = true;
};

Piece piece_of(const Holdings& from, std::size_t old_position, const Holdings& to, std::size_t new_position) {
  Piece piece;
  const std::int32_t old_box = from.box_of_rank[old_position];
  const std::int32_t new_box = to.box_of_rank[new_position];
  for (const std::int32_t element : from.boxes[static_cast<std::size_t>(old_box)]) {
    const std::size_t index = static_cast<std::size_t>(element);
    if (to.box_of_element[index] != new_box) continue;
    const std::int64_t in_old = from.place_of_element[index], in_new = to.place_of_element[index];
    if (piece.size == 0) piece.first_in_old = in_old, piece.first_in_new = in_new;
    piece.contiguous_in_old &= in_old == piece.first_in_old + piece.size;
    piece.contiguous_in_new &= in_new == piece.first_in_new + piece.size;
    ++piece.size;
  }
  return piece;
}

// Whether the piece is the index-th of equal blocks that follow one another from the shard's beginning.
bool is_block(std::int64_t size, std::int64_t first, bool contiguous, std::int64_t block, std::size_t index) {
  return size == block && (size == 0 || (contiguous && first == block * static_cast<std::int64_t>(index)));
}

double efficiency_of(MoveKind kind, const CostModel& cost) {
  if (kind == MoveKind::all_gather) return cost.all_gather_efficiency;
  if (kind == MoveKind::all_to_all) return cost.all_to_all_efficiency;
  return cost.reduce_scatter_efficiency;
}

// One group's part of an all_gather, all_to_all or reduce_scatter.
class GroupOfEqualCounts {
 public:
  GroupOfEqualCounts(MoveLedger& ledger, MoveKind kind, const std::vector<Member>& group)
      : ledger_(ledger), kind_(kind), group_(group), pieces_(group.size() * group.size()) {
    const Setting& setting = ledger.setting();
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t j = 0; j < group.size(); ++j) {
        Piece& piece = pieces_[i * group.size() + j];
        piece = piece_of(setting.from.holdings, group[i].position, setting.to.holdings, group[j].position);
        block_ = std::max(block_, piece.size);
      }
    }
  }

  void write_down() {
    for (std::size_t self = 0; self < group_.size(); ++self) write_down(self);
  }

 private:
  const Piece& piece(std::size_t sender, std::size_t receiver) const {
    return pieces_[sender * group_.size() + receiver];
  }

  void write_down(std::size_t self) {
    const CostModel& cost = ledger_.setting().cost;
    const std::int64_t all_blocks = block_ * static_cast<std::int64_t>(group_.size());
    const bool one_block_in = kind_ == MoveKind::all_gather;
    const bool one_block_out = kind_ == MoveKind::reduce_scatter;
    RankWork& work = ledger_[group_[self].place];
    work.latency_us = cost.step_latency_us + cost.peer_latency_us * static_cast<double>(group_.size() - 1);
    work.packs = one_block_in ? work.old_shard != block_ : !old_shard_is_blocks(self);
    work.unpacks = one_block_out ? work.new_shard != block_ : !new_shard_is_blocks(self);
    work.packed_staging = one_block_in ? block_ : all_blocks;
    work.received_staging = one_block_out ? block_ : all_blocks;
    work.copied = (work.packs ? work.old_shard : 0) + (work.unpacks ? work.new_shard : 0);
    for (std::size_t peer = 0; peer < group_.size(); ++peer) {
      if (peer == self) continue;
      work.payload_bytes += ledger_.bytes(piece(peer, self).size);
      work.wire_bytes += ledger_.bytes(block_);
      ledger_.receive(group_[self].place, group_[peer].place, static_cast<double>(ledger_.bytes(block_)),
                      efficiency_of(kind_, cost));
    }
  }

  bool old_shard_is_blocks(std::size_t self) const {
    for (std::size_t i = 0; i < group_.size(); ++i) {
      const Piece& out = piece(self, i);
      if (!is_block(out.size, out.first_in_old, out.contiguous_in_old, block_, i)) return false;
    }
    return true;
  }
  bool new_shard_is_blocks(std::size_t self) const {
    for (std::size_t i = 0; i < group_.size(); ++i) {
      const Piece& in = piece(i, self);
      if (!is_block(in.size, in.first_in_new, in.contiguous_in_new, block_, i)) return false;
    }
    return true;
  }

  MoveLedger& ledger_;
  MoveKind kind_;
  const std::vector<Member>& group_;
  std::vector<Piece> pieces_;  // by sender and receiver
  std::int64_t block_ = 0;     // the largest piece
};

}  // namespace

std::vector<std::vector<Member>> groups_of(const Mesh& mesh, const std::vector<int>& axes,
                                           const MeshPair& world) {
  std::vector<std::vector<Member>> groups;
  for (const std::vector<Rank>& ranks : mesh.groups(axes)) {
    groups.emplace_back();
    for (const Rank rank : ranks) {
      const std::size_t position = static_cast<std::size_t>(mesh.index_of(rank));
      groups.back().push_back({position, world.places(mesh)[position]});
    }
  }
  return groups;
}

// Of the ranks along an axis that becomes partial from replicated, all but the first make zeros, or ones of a
// product, of nothing: they need their old shards no more.
MoveCost cost_of_to_partial(const Setting& setting) {
  MoveLedger ledger(setting);
  const Layout &from = setting.from.layout, &to = setting.to.layout;
  const Mesh& mesh = from.mesh;
  for (std::size_t i = 0; i < mesh.ranks().size(); ++i) {
    RankWork& work = ledger[setting.world.places(mesh)[i]];
    for (std::size_t axis = 0; axis < from.placements.size(); ++axis) {
      const auto* partial = std::get_if<Partial>(&to.placements[axis]);
      const bool neutral = partial != nullptr && std::holds_alternative<Replicate>(from.placements[axis]) &&
                           (partial->op == ReduceOp::sum || partial->op == ReduceOp::product) &&
                           mesh.coordinate(mesh.ranks()[i], static_cast<int>(axis)) > 0;
      if (neutral) work.old_shard = 0;
    }
  }
  for (std::size_t place = 0; place < ledger.size(); ++place) {
    ledger[place].latency_us = setting.cost.local_latency_us;
    ledger[place].copied = ledger[place].new_shard;
  }
  return ledger.total([](std::size_t, const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
    return (old_is_temporary ? work.old_shard : 0) + (new_is_temporary ? work.new_shard : 0);
  });
}

MoveCost cost_of_slice(const Setting& setting) {
  MoveLedger ledger(setting);
  for (std::size_t place = 0; place < ledger.size(); ++place) {
    ledger[place].latency_us = setting.cost.local_latency_us;
    ledger[place].copied = ledger[place].new_shard;
  }
  return ledger.total([](std::size_t, const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
    return (old_is_temporary ? work.old_shard : 0) + (new_is_temporary ? work.new_shard : 0);
  });
}

MoveCost cost_of_all_reduce(const Setting& setting, const MoveForm& form) {
  MoveLedger ledger(setting);
  for (const std::vector<Member>& group : groups_of(setting.from.layout.mesh, form.axes, setting.world)) {
    const std::int64_t n = static_cast<std::int64_t>(group.size());
    for (const Member& self : group) {
      RankWork& work = ledger[self.place];
      const std::int64_t buffer_bytes = ledger.bytes(work.old_shard);
      work.latency_us =
          setting.cost.step_latency_us + setting.cost.peer_latency_us * static_cast<double>(2 * (n - 1));
      work.payload_bytes = work.wire_bytes = 2 * (n - 1) * buffer_bytes / n;
      for (const Member& peer : group) {
        if (peer.place == self.place) continue;
        ledger.receive(self.place, peer.place,
                       2.0 / static_cast<double>(n) * static_cast<double>(buffer_bytes),
                       setting.cost.all_reduce_efficiency);
      }
    }
  }
  return ledger.total([](std::size_t, const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
    return old_is_temporary || new_is_temporary ? work.old_shard : 0;  // in place between temporaries
  });
}

MoveCost cost_of_equal_counts(const Setting& setting, const MoveForm& form) {
  MoveLedger ledger(setting);
  for (const std::vector<Member>& group : groups_of(setting.from.layout.mesh, form.axes, setting.world)) {
    GroupOfEqualCounts(ledger, form.kind, group).write_down();
  }
  return ledger.total([](std::size_t, const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
    return staged(work, old_is_temporary, new_is_temporary);
  });
}

}  // namespace cp::sim
