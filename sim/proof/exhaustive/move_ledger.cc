#include "sim/proof/exhaustive/move_ledger.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shared/base/units.h"

namespace cp::sim {

namespace {

// A bandwidth of 1 GB/s is 1e9 bytes in 1e6 us.
constexpr double kBytesPerUs = 1e3;

// Bandwidth of a pair: that of the slowest axis in which their coordinates differ, in the old mesh or,
// where it does not hold both, in the new one. A pair that no mesh holds counts as far as any axis, and as
// the network.
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

}  // namespace

MoveLedger::MoveLedger(const Setting& setting)
    : setting_(setting), element_bytes_(size_bytes(setting.from.layout.dtype)), work_(setting.world.size()) {
  const std::vector<std::size_t>& old_places = setting.world.places(setting.from.layout.mesh);
  const std::vector<std::size_t>& new_places = setting.world.places(setting.to.layout.mesh);
  for (std::size_t i = 0; i < old_places.size(); ++i) {
    work_[old_places[i]].old_shard = setting.from.holdings.size_of_rank(i);
  }
  for (std::size_t i = 0; i < new_places.size(); ++i) {
    work_[new_places[i]].new_shard = setting.to.holdings.size_of_rank(i);
  }
}

void MoveLedger::receive(std::size_t to, std::size_t from, double bytes, double efficiency) {
  const std::vector<Rank>& ranks = setting_.world.ranks();
  const double gbps =
      gbps_between(ranks[from], ranks[to], setting_.from.layout.mesh, setting_.to.layout.mesh, setting_.cost);
  work_[to].network_us += bytes / (gbps * efficiency * kBytesPerUs);
}

MoveCost MoveLedger::total(const LiveElements& live) const {
  MoveCost total;
  for (std::size_t place = 0; place < work_.size(); ++place) {
    const RankWork& work = work_[place];
    const double touched_bytes = static_cast<double>(bytes(2 * work.copied + 3 * work.added));
    const double memory_us = touched_bytes / (setting_.cost.memory_gbps * kBytesPerUs);
    total.time_us.push_back(work.latency_us + work.network_us + memory_us);
    total.time_ps.push_back(std::llround(total.time_us.back() * kPsPerUs));
    total.payload_bytes.push_back(work.payload_bytes);
    total.wire_bytes.push_back(work.wire_bytes);
    for (const bool old_is_temporary : {false, true}) {
      for (const bool new_is_temporary : {false, true}) {
        std::int64_t& most = total.temporary_bytes[old_is_temporary][new_is_temporary];
        most = std::max(most, bytes(live(place, work, old_is_temporary, new_is_temporary)));
      }
    }
  }
  return total;
}

std::int64_t staged(const RankWork& work, bool old_is_temporary, bool new_is_temporary) {
  const std::int64_t old_shard = old_is_temporary ? work.old_shard : 0;
  const std::int64_t new_shard = new_is_temporary ? work.new_shard : 0;
  const std::int64_t sent = work.packs ? work.packed_staging : old_shard;
  const std::int64_t received = work.unpacks ? work.received_staging : new_shard;
  std::int64_t most = sent + received;
  if (work.packs) most = std::max(most, old_shard + work.packed_staging);
  if (work.unpacks) most = std::max(most, work.received_staging + new_shard);
  return most;
}

}  // namespace cp::sim
