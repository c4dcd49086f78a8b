// MoveLedger: what each rank does in one move, written down rank by rank and added up by the cost model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shared/redistribute/cost_model.h"
#include "sim/proof/exhaustive/move_costs.h"

namespace cp::sim {

// What is moved, where, and by which model.
struct Setting {
  const Written& from;
  const Written& to;
  const MeshPair& world;
  const CostModel& cost;
};

// What one rank does; sizes in elements.
struct RankWork {
  double latency_us = 0;
  double network_us = 0;
  std::int64_t copied = 0;  // read and written by packing, unpacking and copying
  std::int64_t added = 0;   // arrived pieces: read twice and written once
  std::int64_t old_shard = 0, new_shard = 0;
  std::int64_t kept = 0;  // of an exchange: stays on the rank
  bool packs = false, unpacks = false;
  std::int64_t packed_staging = 0, received_staging = 0;
  std::int64_t payload_bytes = 0, wire_bytes = 0;  // received
};

class MoveLedger {
 public:
  explicit MoveLedger(const Setting& setting);

  const Setting& setting() const { return setting_; }
  std::size_t size() const { return work_.size(); }  // of the MeshPair
  RankWork& operator[](std::size_t place) { return work_[place]; }

  std::int64_t bytes(std::int64_t elements) const { return elements * element_bytes_; }
  // `bytes` arrive at one rank from another.
  void receive(std::size_t to, std::size_t from, double bytes, double efficiency);

  // The most elements that temporaries of the rank at `place` hold, where those of its shards that are the
  // caller's source or target count nothing.
  using LiveElements = std::function<std::int64_t(std::size_t place, const RankWork& work,
                                                  bool old_is_temporary, bool new_is_temporary)>;
  MoveCost total(const LiveElements& live) const;

 private:
  const Setting& setting_;
  std::int64_t element_bytes_;
  std::vector<RankWork> work_;
};

// Packing, travelling and unpacking follow one another; what one has used up is free in the next.
std::int64_t staged(const RankWork& work, bool old_is_temporary, bool new_is_temporary);

}  // namespace cp::sim
