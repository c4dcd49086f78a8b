#include "sim/verify/move_costs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "sim/verify/transfers.h"

namespace cp::sim {

namespace {

constexpr double kBytesPerUs = 1e3;  // of 1 GB/s
constexpr double kPsPerUs = 1e6;

// What one rank does in a move; sizes in elements.
struct RankWork {
  double latency_us = 0;
  double network_us = 0;
  std::int64_t copied = 0;  // elements read and written by packing, unpacking and copying
  std::int64_t added = 0;   // elements read twice and written once
  std::int64_t old_shard = 0, new_shard = 0;
  bool packs = false, unpacks = false;
  std::int64_t packed_staging = 0, received_staging = 0;
  std::int64_t kept = 0;  // stays on the rank in an exchange
  std::int64_t payload_bytes = 0, wire_bytes = 0;
};

// Bandwidth of a pair: that of the slowest axis in which their coordinates differ, in the old mesh or, where it does
// not hold both, in the new one. A pair that no mesh holds counts as far as any axis, and as the network.
double gbps_between(Rank a, Rank b, const Mesh& from, const Mesh& to, const CostModel& cost) {
  double slowest = std::numeric_limits<double>::infinity();
  for (const Mesh* mesh : {&from, &to}) {
    if (!mesh->contains(a) || !mesh->contains(b)) continue;
    for (int axis = 0; axis < mesh->num_axes(); ++axis) {
      if (mesh->coordinate(a, axis) != mesh->coordinate(b, axis)) {
        slowest = std::min(slowest, cost.bandwidth_gbps(*mesh, axis));
      }
    }
    return slowest;
  }
  for (const Mesh* mesh : {&from, &to}) {
    for (int axis = 0; axis < mesh->num_axes(); ++axis) {
      slowest = std::min(slowest, cost.bandwidth_gbps(*mesh, axis));
    }
  }
  return std::min(slowest, cost.network_gbps);
}

// Writes one move's costs down, rank by rank.
class Ledger {
 public:
  Ledger(const Written& from, const Written& to, const World& world, const CostModel& cost)
      : from_(from.layout.mesh),
        to_(to.layout.mesh),
        world_(world),
        cost_(cost),
        element_bytes_(size_bytes(from.layout.dtype)),
        work_(world.size()) {
    const auto& old_places = world.places(from.layout.mesh);
    for (std::size_t i = 0; i < old_places.size(); ++i)
      work_[old_places[i]].old_shard = from.holdings.size_of_rank(i);
    const auto& new_places = world.places(to.layout.mesh);
    for (std::size_t i = 0; i < new_places.size(); ++i)
      work_[new_places[i]].new_shard = to.holdings.size_of_rank(i);
  }

  RankWork& operator[](std::size_t rank) { return work_[rank]; }
  std::vector<RankWork>& ranks() { return work_; }
  std::int64_t bytes(std::int64_t elements) const { return elements * element_bytes_; }

  // `bytes` arrive at `to` from `from`.
  void receive(std::size_t to, std::size_t from, double bytes, double efficiency) {
    const double gbps = gbps_between(world_.ranks()[from], world_.ranks()[to], from_, to_, cost_);
    work_[to].network_us += bytes / (gbps * efficiency * kBytesPerUs);
  }
  void pay_latency(double us) {
    for (RankWork& rank : work_) rank.latency_us += us;
  }

  // Temporaries of one rank, in elements, given what the ends of the chain leave of its shards.
  using LiveElements = std::int64_t (*)(const RankWork& rank, std::int64_t old_temporary,
                                        std::int64_t new_temporary);

  MoveCost total(LiveElements live) const {
    MoveCost total;
    for (const RankWork& rank : work_) {
      const double memory_us =
          static_cast<double>(bytes(2 * rank.copied + 3 * rank.added)) / (cost_.memory_gbps * kBytesPerUs);
      total.time_us.push_back(rank.latency_us + rank.network_us + memory_us);
      total.time_ps.push_back(std::llround(total.time_us.back() * kPsPerUs));
      total.payload_bytes.push_back(rank.payload_bytes);
      total.wire_bytes.push_back(rank.wire_bytes);
      for (const std::size_t old_is_temporary : {0U, 1U}) {
        for (const std::size_t new_is_temporary : {0U, 1U}) {
          std::int64_t& most = total.temporary_bytes[old_is_temporary][new_is_temporary];
          most = std::max(most, bytes(live(rank, old_is_temporary ? rank.old_shard : 0,
                                           new_is_temporary ? rank.new_shard : 0)));
        }
      }
    }
    return total;
  }

 private:
  const Mesh& from_;
  const Mesh& to_;
  const World& world_;
  const CostModel& cost_;
  std::int64_t element_bytes_;
  std::vector<RankWork> work_;
};

std::int64_t both_shards(const RankWork&, std::int64_t old_temporary, std::int64_t new_temporary) {
  return old_temporary + new_temporary;
}

// Packing, travelling and unpacking follow one another, and what one has used up is free in the next.
std::int64_t staged(const RankWork& rank, std::int64_t old_temporary, std::int64_t new_temporary) {
  const std::int64_t sent = rank.packs ? rank.packed_staging : old_temporary;
  const std::int64_t received = rank.unpacks ? rank.received_staging : new_temporary;
  std::int64_t most = sent + received;
  if (rank.packs) most = std::max(most, old_temporary + rank.packed_staging);
  if (rank.unpacks) most = std::max(most, rank.received_staging + new_temporary);
  return most;
}

MoveCost cost_of_slice(Ledger ledger, const CostModel& cost) {
  ledger.pay_latency(cost.local_latency_us);
  for (RankWork& rank : ledger.ranks()) rank.copied = rank.new_shard;
  return ledger.total(both_shards);
}

// The groups of a collective, as places in the world; and the position of each member in the mesh.
struct Member {
  std::size_t position, place;
};
std::vector<std::vector<Member>> groups_of(const Mesh& mesh, const std::vector<int>& axes,
                                           const World& world) {
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

MoveCost cost_of_all_reduce(Ledger ledger, const MoveForm& form, const Written& from, const World& world,
                            const CostModel& cost) {
  for (const std::vector<Member>& group : groups_of(from.layout.mesh, form.axes, world)) {
    const double n = static_cast<double>(group.size());
    for (const Member& to : group) {
      const std::int64_t buffer = ledger.bytes(from.holdings.size_of_rank(to.position));
      RankWork& rank = ledger[to.place];
      rank.latency_us = cost.step_latency_us + cost.peer_latency_us * 2 * (n - 1);
      rank.payload_bytes = rank.wire_bytes = 2 * (static_cast<std::int64_t>(group.size()) - 1) * buffer /
                                             static_cast<std::int64_t>(group.size());
      for (const Member& peer : group) {
        if (peer.place == to.place) continue;
        ledger.receive(to.place, peer.place, 2 / n * static_cast<double>(buffer), cost.all_reduce_efficiency);
      }
    }
  }
  return ledger.total([](const RankWork&, std::int64_t old_temporary, std::int64_t new_temporary) {
    return std::max(old_temporary, new_temporary);  // in place between temporaries
  });
}

// Where the piece that an old shard and a new one share lies: its size, and whether its elements are
// [first, first + size) of both, in order.
struct Piece {
  std::int64_t size = 0, first_in_old = 0, first_in_new = 0;
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

// Whether the piece is the index-th of blocks that follow one another from the shard's beginning.
bool is_block(std::int64_t size, std::int64_t first, bool contiguous, std::int64_t block, std::size_t index) {
  return size == block && (size == 0 || (contiguous && first == block * static_cast<std::int64_t>(index)));
}

double efficiency_of(MoveKind kind, const CostModel& cost) {
  if (kind == MoveKind::all_gather) return cost.all_gather_efficiency;
  if (kind == MoveKind::all_to_all) return cost.all_to_all_efficiency;
  return cost.reduce_scatter_efficiency;
}

// all_gather, all_to_all, reduce_scatter.
MoveCost cost_of_equal_counts(Ledger ledger, const MoveForm& form, const Written& from, const Written& to,
                              const World& world, const CostModel& cost) {
  const bool one_block_in = form.kind == MoveKind::all_gather,
             one_block_out = form.kind == MoveKind::reduce_scatter;
  for (const std::vector<Member>& group : groups_of(from.layout.mesh, form.axes, world)) {
    const std::size_t n = group.size();
    std::vector<Piece> pieces(n * n);  // by sender and receiver
    std::int64_t block = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        pieces[i * n + j] = piece_of(from.holdings, group[i].position, to.holdings, group[j].position);
        block = std::max(block, pieces[i * n + j].size);
      }
    }
    const std::int64_t all_blocks = block * static_cast<std::int64_t>(n);
    for (std::size_t self = 0; self < n; ++self) {
      RankWork& rank = ledger[group[self].place];
      rank.latency_us = cost.step_latency_us + cost.peer_latency_us * static_cast<double>(n - 1);
      rank.packs = one_block_in && rank.old_shard != block;
      rank.unpacks = one_block_out && rank.new_shard != block;
      for (std::size_t i = 0; i < n; ++i) {
        const Piece& out = pieces[self * n + i];
        const Piece& in = pieces[i * n + self];
        if (!one_block_in)
          rank.packs |= !is_block(out.size, out.first_in_old, out.contiguous_in_old, block, i);
        if (!one_block_out)
          rank.unpacks |= !is_block(in.size, in.first_in_new, in.contiguous_in_new, block, i);
        if (i == self) continue;
        rank.payload_bytes += ledger.bytes(in.size);
        rank.wire_bytes += ledger.bytes(block);
        ledger.receive(group[self].place, group[i].place, static_cast<double>(ledger.bytes(block)),
                       efficiency_of(form.kind, cost));
      }
      rank.packed_staging = one_block_in ? block : all_blocks;
      rank.received_staging = one_block_out ? block : all_blocks;
      rank.copied = (rank.packs ? rank.old_shard : 0) + (rank.unpacks ? rank.new_shard : 0);
    }
  }
  return ledger.total(staged);
}

// The peers of each rank: as many as it sends to, or as it receives from, whichever are more.
std::vector<std::int64_t> peer_counts(const Deliveries& deliveries, std::size_t world_size) {
  std::vector<std::set<std::size_t>> receivers(world_size), senders(world_size);
  for (const Delivery& delivery : deliveries.all) {
    receivers[delivery.from].insert(delivery.to);
    senders[delivery.to].insert(delivery.from);
  }
  std::vector<std::int64_t> counts;
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    counts.push_back(static_cast<std::int64_t>(std::max(receivers[rank].size(), senders[rank].size())));
  }
  return counts;
}

// What arrives, and what each rank's peers cost it.
void receive_all(Ledger& ledger, const Deliveries& deliveries, const CostModel& cost) {
  const std::vector<std::int64_t> peers = peer_counts(deliveries, ledger.ranks().size());
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    ledger[rank].latency_us += cost.peer_latency_us * static_cast<double>(peers[rank]);
  }
  for (const Delivery& delivery : deliveries.all) {
    const std::int64_t bytes = ledger.bytes(delivery.size);
    ledger[delivery.to].payload_bytes += bytes;
    ledger[delivery.to].wire_bytes += bytes;
    ledger.receive(delivery.to, delivery.from, static_cast<double>(bytes), cost.exchange_efficiency);
  }
}

MoveCost cost_of_exchange(Ledger ledger, const Written& from, const Written& to, const World& world,
                          const CostModel& cost) {
  const Deliveries deliveries = sim::deliveries(from, to, world);
  ledger.pay_latency(cost.step_latency_us);
  receive_all(ledger, deliveries, cost);
  std::vector<std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>> sent_boxes(world.size());
  for (const Delivery& delivery : deliveries.all) {
    ledger[delivery.from].packs |= !delivery.contiguous_in_old;
    ledger[delivery.to].unpacks |= !delivery.contiguous_in_new;
    ledger[delivery.to].received_staging += delivery.size;
    // Once for all receivers of the same box.
    std::int64_t& packed = sent_boxes[delivery.from][{delivery.old_box, delivery.new_box}];
    if (packed == 0) ledger[delivery.from].packed_staging += delivery.size;
    packed = delivery.size;
  }
  for (std::size_t i = 0; i < world.size(); ++i) {
    RankWork& rank = ledger[i];
    rank.kept = deliveries.kept[i];
    rank.copied =
        (rank.packs ? rank.packed_staging : 0) + (rank.unpacks ? rank.received_staging : 0) + rank.kept;
  }
  return ledger.total([](const RankWork& rank, std::int64_t old_temporary, std::int64_t new_temporary) {
    RankWork staging = rank;
    if (old_temporary > 0 && new_temporary > 0) {  // the part that stays goes through the staging, too
      staging.packed_staging += rank.kept;
      staging.received_staging += rank.kept;
    }
    return staged(staging, old_temporary, new_temporary);
  });
}

// How many rounds of a reduce_exchange carry anything: in round k members send to the member k places on.
std::int64_t num_rounds(const Deliveries& deliveries, const std::vector<std::vector<std::size_t>>& groups) {
  std::set<std::size_t> rounds;
  for (const std::vector<std::size_t>& members : groups) {
    const auto index_of = [&](std::size_t place) {
      return static_cast<std::size_t>(std::find(members.begin(), members.end(), place) - members.begin());
    };
    for (const Delivery& delivery : deliveries.all) {
      const std::size_t from = index_of(delivery.from), to = index_of(delivery.to);
      if (from < members.size()) rounds.insert((to + members.size() - from) % members.size());
    }
  }
  return static_cast<std::int64_t>(rounds.size());
}

// The members of the rounds: ranks that differ along the axes of the move; straight to the target, along those
// axes in which some sender differs from its receiver; between meshes, all ranks.
std::vector<std::vector<std::size_t>> exchange_groups(const MoveForm& form, const Written& from,
                                                      const Written& to, const Deliveries& deliveries,
                                                      const World& world) {
  const Mesh& mesh = from.layout.mesh;
  std::vector<std::vector<std::size_t>> groups;
  if (mesh != to.layout.mesh) {
    groups.emplace_back(world.size());
    std::iota(groups[0].begin(), groups[0].end(), 0U);
    return groups;
  }
  std::vector<int> axes = form.axes;
  for (int axis = 0; form.axes.empty() && axis < mesh.num_axes(); ++axis) {
    const auto crosses = [&](const Delivery& delivery) {
      return mesh.coordinate(world.ranks()[delivery.from], axis) !=
             mesh.coordinate(world.ranks()[delivery.to], axis);
    };
    if (std::any_of(deliveries.all.begin(), deliveries.all.end(), crosses)) axes.push_back(axis);
  }
  for (const std::vector<Member>& group : groups_of(mesh, axes, world)) {
    groups.emplace_back();
    for (const Member& member : group) groups.back().push_back(member.place);
  }
  return groups;
}

MoveCost cost_of_reduce_exchange(Ledger ledger, const MoveForm& form, const Written& from, const Written& to,
                                 const World& world, const CostModel& cost) {
  const Deliveries deliveries = sim::deliveries(from, to, world, form.axes);
  const std::int64_t rounds = num_rounds(deliveries, exchange_groups(form, from, to, deliveries, world));
  ledger.pay_latency(cost.step_latency_us * static_cast<double>(rounds));
  receive_all(ledger, deliveries, cost);
  for (const Delivery& delivery : deliveries.all) {
    RankWork& sender = ledger[delivery.from];
    RankWork& receiver = ledger[delivery.to];
    if (!delivery.contiguous_in_old) {
      sender.copied += delivery.size;
      sender.packed_staging = std::max(sender.packed_staging, delivery.size);
    }
    receiver.added += delivery.size;
    receiver.received_staging = std::max(receiver.received_staging, delivery.size);
  }
  for (std::size_t i = 0; i < world.size(); ++i) ledger[i].copied += deliveries.kept[i];
  return ledger.total([](const RankWork& rank, std::int64_t old_temporary, std::int64_t new_temporary) {
    return old_temporary + new_temporary + rank.packed_staging + rank.received_staging;
  });
}

}  // namespace

World::World(const Mesh& source, const Mesh& target)
    : source_(source), target_(target), ranks_(source.ranks()) {
  for (const Rank rank : target.ranks()) {
    if (!source.contains(rank)) ranks_.push_back(rank);
  }
  const auto places_of = [&](const Mesh& mesh) {
    std::vector<std::size_t> places;
    for (const Rank rank : mesh.ranks()) {
      places.push_back(
          static_cast<std::size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin()));
    }
    return places;
  };
  source_places_ = places_of(source);
  target_places_ = places_of(target);
}

const std::vector<std::size_t>& World::places(const Mesh& mesh) const {
  return mesh == source_ ? source_places_ : target_places_;
}

MoveCost cost_of(const MoveForm& form, const Written& from, const Written& to, const World& world,
                 const CostModel& cost) {
  Ledger ledger(from, to, world, cost);
  switch (form.kind) {
    case MoveKind::slice:
      return cost_of_slice(std::move(ledger), cost);
    case MoveKind::all_gather:
    case MoveKind::all_to_all:
    case MoveKind::reduce_scatter:
      return cost_of_equal_counts(std::move(ledger), form, from, to, world, cost);
    case MoveKind::all_reduce:
      return cost_of_all_reduce(std::move(ledger), form, from, world, cost);
    case MoveKind::exchange:
      return cost_of_exchange(std::move(ledger), from, to, world, cost);
    case MoveKind::reduce_exchange:
      return cost_of_reduce_exchange(std::move(ledger), form, from, to, world, cost);
    case MoveKind::to_partial:
      break;
  }
  throw InvalidInput(str("the exhaustive search does not know the move ", name(form.kind)));
}

}  // namespace cp::sim
