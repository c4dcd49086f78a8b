// Lower bounds of what a chain of moves still costs: what lets the search pass over most of it.
//
// Internal to shared/redistribute. A chain costs the maximum over the ranks of each rank's sum, and a maximum is no less
// than the mean over any set of ranks. The sets used here are the areas:
//   each rank alone                 what it misses of its new shard must arrive, at the best rate there is;
//   ranks joined by fast axes       what none of them holds must reach them over slower ones, at their rate;
//   all ranks                       n contributions become one value by n-1 receives, and each further holder of the
//                                   result receives it: at the best rate, and between areas at the slower ones.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/redistribute/move_cost.h"

namespace cp::detail {

class Bounds {
 public:
  Bounds(LayoutSpace& space, const MoveCoster& coster, const CostModel& model);

  // The first areas are the single ranks, in order of their positions.
  const std::vector<std::vector<std::int32_t>>& areas() const { return areas_; }

  // What every chain from `state` to `target` costs on average over each area, at least.
  void find(const State& state, const State& target, std::vector<double>& time_us,
            std::vector<double>& bytes);

 private:
  struct Level {
    double us_per_byte = 0;  // no transfer between two of its areas is faster
    std::size_t first_area = 0, end_area = 0;
    std::size_t all_ranks = 0;  // the area of all ranks, at this rate
  };
  struct Reduction {
    std::int64_t contributions = 1;  // to each value
    std::int64_t copies = 1;         // values per element: coordinates along the axes that stay partial
  };
  struct Need {
    std::int64_t outside = 0, distinct = 0;
  };
  Need needed(const State& state, const State& target, const BoxPair& boxes, std::size_t area,
              bool arrives_all);
  const std::vector<std::int32_t>& receivers(const State& target, unsigned kept, std::size_t area);
  Reduction reduction(const State& state, const State& target, double slower_than) const;
  double active_part(const State& state, const State& target, std::size_t area) const;
  void split_areas();

  LayoutSpace& space_;
  const MoveCoster& coster_;
  const CostModel& model_;
  std::vector<std::vector<std::int32_t>> areas_;
  std::vector<std::vector<std::int32_t>> receivers_;  // by area: which hold distinct parts of the target
  unsigned receivers_kept_ = ~0U;                     // the partial axes for which that was found
  std::vector<Level> levels_;  // fastest first; the areas of the first are single ranks
};

}  // namespace cp::detail
