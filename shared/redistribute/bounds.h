// Lower bounds of what a chain of moves still costs. They let the search pass over most of the moves.
//
// Internal to shared/redistribute. A move lasts as long as its slowest rank, which is no less than the mean
// over any set of ranks. The sets used here are called areas:
//   each rank alone                 what it misses of its new shard must arrive, at the best rate there is;
//   ranks joined by fast axes       what none of them holds must reach them over slower ones, at their rate;
//   all ranks                       n contributions become one value by n-1 receives, and each further holder
//                                   of the result receives it: at the best rate, and between areas at the
//                                   slower ones.
// If the target is Partial, ranks that differ along its partial axes hold each value together. An area is
// then never less than all of these, since one of them may have the value and the others zeros.
//
// Any set of areas gives a bound, and more of them a better one. If there are many ranks, only some areas are
// looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/redistribute/move_cost.h"

namespace cp::detail {

class Bounds {
 public:
  // Bounds of chains that end in space.target().
  Bounds(StateSpace& space, const MoveCoster& coster, const CostModel& model);

  struct Left {
    std::int64_t time_ps = 0, bytes_received = 0;
  };
  // What every chain from `state` to the target costs at least.
  Left find(const State& state);

 private:
  struct Area {
    std::vector<std::int32_t> ranks;
    std::vector<std::int32_t> receivers;  // one of `ranks` for each distinct part of the target
    std::int64_t distinct = 0;            // elements of these parts together
    std::vector<std::size_t> inner;       // which areas of the level before make up this one
    double time_us = 0;                   // for the state that find() looks at
  };
  struct Level {
    // Microseconds for each byte: no transfer between two areas of the level is faster, at full efficiency.
    double gap = 0;
    std::vector<Area> areas;
  };
  void split_areas();
  std::vector<std::vector<std::int32_t>> joined_ranks(double faster) const;
  Area area_of(std::vector<std::int32_t> ranks, const Level* before) const;
  std::vector<std::int32_t> distinct_holders(const State& state,
                                             const std::vector<std::int32_t>& ranks) const;
  std::int64_t outside(const State& state, const BoxPair& boxes, const Area& area, bool arrives_all) const;
  std::int64_t contributions(const State& state, double at_least_gap, std::int64_t& copies) const;
  double active_part(const State& state, const Area& area) const;

  StateSpace& space_;
  const MoveCoster& coster_;
  const CostModel& model_;
  std::vector<Level> levels_;  // fastest first
  bool complete_ = true;       // no area was left out
};

}  // namespace cp::detail
