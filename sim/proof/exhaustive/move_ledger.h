// MoveLedger: what each rank does in one move is written down rank by rank, and added up by the cost model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shared/redistribute/cost_model.h"
#include "sim/proof/exhaustive/move_costs.h"

namespace cp::sim {

// What is moved, from where to where, and by which model. All of it must outlive the setting.
struct Setting {
  const Written& from;
  const Written& to;
  const MeshPair& world;
  const CostModel& cost;
};

// What one rank does in the move. Sizes are counted in elements, unless they are called bytes.
struct RankWork {
  double latency_us = 0;
  double network_us = 0;
  std::int64_t copied = 0;  // elements that packing, unpacking and copying read and write once each
  std::int64_t added = 0;   // elements that arrive and are added: reads two and writes one for each
  std::int64_t old_shard = 0, new_shard = 0;
  std::int64_t kept = 0;  // in an exchange: what stays on the rank
  bool packs = false, unpacks = false;
  std::int64_t packed_staging = 0, received_staging = 0;
  std::int64_t payload_bytes = 0, wire_bytes = 0;  // that arrive
};

class MoveLedger {
 public:
  // The setting must outlive this.
  explicit MoveLedger(const Setting& setting);

  const Setting& setting() const { return setting_; }
  std::size_t size() const { return work_.size(); }  // the number of ranks of the MeshPair
  RankWork& operator[](std::size_t place) { return work_[place]; }

  std::int64_t bytes(std::int64_t elements) const { return elements * element_bytes_; }
  // Notes that so many bytes arrive at the rank at place `to` from the one at `from`. `efficiency` is the
  // part of the bandwidth that this kind of move reaches.
  void receive(std::size_t to, std::size_t from, double bytes, double efficiency);

  // Returns the most elements that temporaries of the rank at `place` hold at once. A shard that is no
  // temporary is the caller's source or target, and counts nothing.
  using LiveElements = std::function<std::int64_t(std::size_t place, const RankWork& work,
                                                  bool old_is_temporary, bool new_is_temporary)>;
  // The cost of the whole move.
  MoveCost total(const LiveElements& live) const;

 private:
  const Setting& setting_;
  std::int64_t element_bytes_;
  std::vector<RankWork> work_;
};

// The most elements of temporaries in a move that packs, travels and unpacks, one after the other: what one
// of these has used up is free in the next.
std::int64_t staged(const RankWork& work, bool old_is_temporary, bool new_is_temporary);

}  // namespace cp::sim
