// exchange and reduce_exchange.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "sim/proof/exhaustive/cost_rules.h"
#include "sim/proof/exhaustive/exchange_rules.h"

namespace cp::sim {

namespace {

// The peers of each rank: as many as it sends to, or as it receives from, whichever are more.
std::vector<std::size_t> peer_counts(const Deliveries& deliveries, std::size_t world_size) {
  std::vector<std::set<std::size_t>> receivers(world_size), senders(world_size);
  for (const Delivery& delivery : deliveries.all) {
    receivers[delivery.from].insert(delivery.to);
    senders[delivery.to].insert(delivery.from);
  }
  std::vector<std::size_t> counts;
  for (std::size_t place = 0; place < world_size; ++place) {
    counts.push_back(std::max(receivers[place].size(), senders[place].size()));
  }
  return counts;
}

// What arrives, what stays, and what the peers cost.
void write_down_traffic(MoveLedger& ledger, const Deliveries& deliveries) {
  const CostModel& cost = ledger.setting().cost;
  const std::vector<std::size_t> peers = peer_counts(deliveries, ledger.size());
  for (std::size_t place = 0; place < ledger.size(); ++place) {
    ledger[place].latency_us += cost.peer_latency_us * static_cast<double>(peers[place]);
    ledger[place].kept = deliveries.kept[place];
    ledger[place].copied += deliveries.kept[place];
  }
  for (const Delivery& delivery : deliveries.all) {
    const std::int64_t bytes = ledger.bytes(delivery.size);
    ledger[delivery.to].payload_bytes += bytes;
    ledger[delivery.to].wire_bytes += bytes;
    ledger.receive(delivery.to, delivery.from, static_cast<double>(bytes), cost.exchange_efficiency);
  }
}

std::vector<std::size_t> all_places(const MeshPair& world) {
  std::vector<std::size_t> places(world.size());
  std::iota(places.begin(), places.end(), 0U);
  return places;
}

// Who takes part in the rounds together: ranks that differ along the axes of the move; straight to the
// target, along those axes in which some sender differs from its receiver; between meshes, all ranks.
std::vector<std::vector<std::size_t>> round_groups(const Setting& setting, const MoveForm& form,
                                                   const Deliveries& deliveries) {
  const Mesh& mesh = setting.from.layout.mesh;
  if (mesh != setting.to.layout.mesh) return {all_places(setting.world)};
  std::vector<int> axes = form.axes;
  for (int axis = 0; form.axes.empty() && axis < mesh.num_axes(); ++axis) {
    const auto coordinate = [&](std::size_t place) {
      return mesh.coordinate(setting.world.ranks()[place], axis);
    };
    const bool crossed = std::any_of(
        deliveries.all.begin(), deliveries.all.end(),
        [&](const Delivery& delivery) { return coordinate(delivery.from) != coordinate(delivery.to); });
    if (crossed) axes.push_back(axis);
  }
  std::vector<std::vector<std::size_t>> groups;
  for (const std::vector<Member>& group : groups_of(mesh, axes, setting.world)) {
    groups.emplace_back();
    for (const Member& member : group) groups.back().push_back(member.place);
  }
  return groups;
}

// The round of each delivery: in round k members send to the member k places on.
std::vector<std::size_t> rounds_of(const Deliveries& deliveries,
                                   const std::vector<std::vector<std::size_t>>& groups) {
  std::vector<std::size_t> rounds;
  for (const Delivery& delivery : deliveries.all) {
    for (const std::vector<std::size_t>& members : groups) {
      const auto from = std::find(members.begin(), members.end(), delivery.from);
      const auto to = std::find(members.begin(), members.end(), delivery.to);
      if (from == members.end() || to == members.end()) continue;
      const std::size_t distance = static_cast<std::size_t>(to - members.begin()) + members.size() -
                                   static_cast<std::size_t>(from - members.begin());
      rounds.push_back(distance % members.size());
    }
  }
  return rounds;
}

// The most that is alive at once while the part that stays is copied, and pieces are packed, travel and are
// unpacked. A shard lives for an exchange only where the rank has something to send from it, or to receive
// into it. Between temporaries the part that stays takes the way of what travels.
std::int64_t live_in_exchange(const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
  const std::int64_t old_shard = old_is_temporary ? work.old_shard : 0;
  const std::int64_t new_shard = new_is_temporary ? work.new_shard : 0;
  const std::int64_t along = old_is_temporary && new_is_temporary ? work.kept : 0;
  const std::int64_t packed = work.packs ? work.packed_staging + along : 0;
  const std::int64_t received = work.unpacks ? work.received_staging + along : 0;
  const bool sends = work.packed_staging > 0 || along > 0, receives = work.received_staging > 0 || along > 0;

  const std::int64_t copying = work.kept > 0 ? old_shard : 0;
  const std::int64_t packing = work.packs ? old_shard + packed : 0;
  const std::int64_t travelling = (work.packs ? packed
                                   : sends    ? old_shard
                                              : 0) +
                                  (work.unpacks ? received
                                   : receives   ? new_shard
                                                : 0);
  const std::int64_t unpacking = received + new_shard;
  return std::max({copying, packing, travelling, unpacking});
}

// When a rank packs, sends and receives in the rounds of a reduce_exchange.
struct RoundsOfRank {
  std::set<std::size_t> packs, sends, receives;
};

// The most that is alive at once in the rounds, each of which packs, exchanges and accumulates. Alive are:
// the old shard until its last piece is packed or sent, the packed staging from the first packing to the
// last exchange of what was packed, the received staging from the first arrival to the last accumulation,
// and the new shard from its first contribution on: the rank's own comes before the rounds.
std::int64_t live_in_rounds(const RoundsOfRank& rounds, const RankWork& work, bool old_is_temporary,
                            bool new_is_temporary) {
  const auto begun = [](const std::set<std::size_t>& of_kind, std::size_t round) {
    return !of_kind.empty() && *of_kind.begin() <= round;
  };
  const auto goes_on = [](const std::set<std::size_t>& of_kind, std::size_t after) {
    return !of_kind.empty() && *of_kind.rbegin() > after;
  };
  bool has_new = work.kept > 0;
  std::int64_t most = 0;
  const auto moment = [&](bool has_old, bool has_packed, bool has_received) {
    most = std::max(most, (has_old && old_is_temporary ? work.old_shard : 0) +
                              (has_new && new_is_temporary ? work.new_shard : 0) +
                              (has_packed ? work.packed_staging : 0) +
                              (has_received ? work.received_staging : 0));
  };
  if (has_new) moment(true, false, false);
  std::set<std::size_t> all = rounds.sends;
  all.insert(rounds.receives.begin(), rounds.receives.end());
  for (const std::size_t round : all) {
    const bool packs = rounds.packs.contains(round), receives = rounds.receives.contains(round);
    const bool sends_later = goes_on(rounds.sends, round);
    const bool sends_old = rounds.sends.contains(round) && !packs;
    const bool has_packed = begun(rounds.packs, round) && (packs || goes_on(rounds.packs, round));
    const bool has_received = begun(rounds.receives, round) && (receives || goes_on(rounds.receives, round));
    if (packs) moment(true, true, begun(rounds.receives, round - 1) && has_received);
    moment(sends_later || sends_old, has_packed, has_received);
    if (!receives) continue;
    has_new = true;
    moment(sends_later, has_packed && goes_on(rounds.packs, round), has_received);
  }
  return most;
}

}  // namespace

MoveCost cost_of_exchange(const Setting& setting) {
  const Deliveries deliveries = sim::deliveries(setting.from, setting.to, setting.world);
  MoveLedger ledger(setting);
  write_down_traffic(ledger, deliveries);
  // A rank packs a piece once for all receivers with the same new box.
  std::set<std::pair<std::size_t, std::pair<std::int32_t, std::int32_t>>> packed;
  for (const Delivery& delivery : deliveries.all) {
    RankWork& sender = ledger[delivery.from];
    RankWork& receiver = ledger[delivery.to];
    sender.packs |= !delivery.contiguous_in_old;
    receiver.unpacks |= !delivery.contiguous_in_new;
    receiver.received_staging += delivery.size;
    if (packed.insert({delivery.from, {delivery.old_box, delivery.new_box}}).second) {
      sender.packed_staging += delivery.size;
    }
  }
  for (std::size_t place = 0; place < ledger.size(); ++place) {
    RankWork& work = ledger[place];
    work.latency_us += setting.cost.step_latency_us;
    work.copied += (work.packs ? work.packed_staging : 0) + (work.unpacks ? work.received_staging : 0);
  }
  return ledger.total([](std::size_t, const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
    return live_in_exchange(work, old_is_temporary, new_is_temporary);
  });
}

MoveCost cost_of_reduce_exchange(const Setting& setting, const MoveForm& form) {
  const Deliveries deliveries = sim::deliveries(setting.from, setting.to, setting.world, form.axes);
  const std::vector<std::size_t> rounds = rounds_of(deliveries, round_groups(setting, form, deliveries));
  const std::size_t num_rounds = std::set<std::size_t>(rounds.begin(), rounds.end()).size();
  MoveLedger ledger(setting);
  write_down_traffic(ledger, deliveries);
  std::vector<RoundsOfRank> rounds_of_rank(ledger.size());
  for (std::size_t i = 0; i < deliveries.all.size(); ++i) {
    const Delivery& delivery = deliveries.all[i];
    RankWork& sender = ledger[delivery.from];
    RankWork& receiver = ledger[delivery.to];
    rounds_of_rank[delivery.from].sends.insert(rounds[i]);
    rounds_of_rank[delivery.to].receives.insert(rounds[i]);
    receiver.added += delivery.size;
    receiver.received_staging = std::max(receiver.received_staging, delivery.size);
    if (delivery.contiguous_in_old) continue;
    rounds_of_rank[delivery.from].packs.insert(rounds[i]);
    sender.copied += delivery.size;
    sender.packed_staging = std::max(sender.packed_staging, delivery.size);
  }
  for (std::size_t place = 0; place < ledger.size(); ++place) {
    ledger[place].latency_us += setting.cost.step_latency_us * static_cast<double>(num_rounds);
  }
  return ledger.total(
      [&](std::size_t place, const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
        return live_in_rounds(rounds_of_rank[place], work, old_is_temporary, new_is_temporary);
      });
}

}  // namespace cp::sim
