// What a move costs each rank: time by the CostModel, bytes received, live temporaries. Internal to
// shared/redistribute.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/redistribute/cost_model.h"
#include "shared/redistribute/traffic.h"

namespace cp::detail {

// Whose memory a move works between. The caller's source and target are no temporaries.
struct Ends {
  bool from_is_source = false;
  bool to_is_target = false;
  bool from_is_cast = false;  // a cast has made the whole of the old shard, whether it is needed or not
};

// By position in the space.
struct MoveCost {
  std::vector<double> time_us;
  std::vector<std::int64_t> bytes_received;       // payload
  std::vector<std::int64_t> wire_bytes_received;  // with padding
  std::vector<std::int64_t> temporary_bytes;      // the most that is live at once
};

class MoveCoster {
 public:
  MoveCoster(LayoutSpace& space, const CostModel& model, DType travel_dtype);

  // Fills `cost`, reusing its memory.
  void evaluate(const StateMove& move, Ends ends, MoveCost& cost);

  // No rank spends less in this move: found without looking at who sends what.
  void evaluate_quickly(const StateMove& move, std::vector<double>& time_us, std::vector<double>& bytes);

  // Time of the casts from the source's type and to the target's, by position.
  std::vector<double> cast_us(bool before, bool after) const;

  std::int64_t shard_bytes(const State& state, int position) const {
    return space_.numel(state, position) * element_bytes_;
  }

  // Microseconds per byte between two ranks, and along a mesh axis, at full efficiency.
  double gap(std::int32_t a, std::int32_t b) const {
    return gap_[static_cast<std::size_t>(a) * static_cast<std::size_t>(space_.num_ranks()) +
                static_cast<std::size_t>(b)];
  }
  double axis_gap(int side, int axis) const {
    return axis_gap_[static_cast<std::size_t>(side)][static_cast<std::size_t>(axis)];
  }
  double best_efficiency() const { return best_efficiency_; }  // of any operation
  std::int64_t element_bytes() const { return element_bytes_; }

 private:
  double efficiency(MoveKind kind) const;
  void charge_group(const StateMove& move, const Traffic& traffic, std::int32_t position, MoveCost& cost);
  void charge_exchange(const StateMove& move, const Traffic& traffic, MoveCost& cost);
  std::int64_t live_bytes(const StateMove& move, const RankTraffic& rank, Ends ends) const;

  LayoutSpace& space_;
  const CostModel& model_;
  std::int64_t element_bytes_;
  double copy_us_per_byte_;  // one byte read and one written
  double best_efficiency_;
  double best_gap_;                            // between any two ranks
  std::vector<std::vector<double>> axis_gap_;  // [side][axis]
  std::vector<double> gap_;
  Traffic traffic_;
  std::vector<std::int32_t> group_;
};

}  // namespace cp::detail
