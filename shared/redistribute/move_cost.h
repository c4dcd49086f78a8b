// Computes what a move costs: time by the CostModel, bytes received, and live temporaries. Internal to
// shared/redistribute.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/redistribute/cost_model.h"
#include "shared/redistribute/traffic.h"

namespace cp::detail {

// Whose memory the ends of a move are. The caller's source and target are not temporaries.
struct Ends {
  bool from_is_source = false;
  bool to_is_target = false;
  bool from_is_cast = false;  // a cast has made the whole old shard, whether all of it is needed or not
};

// A move is over when its slowest rank is. So each figure is the largest over the ranks; the totals are sums.
struct MoveCost {
  double time_us = 0;
  std::int64_t time_ps = 0;              // the same in whole picoseconds, so that equal costs compare equal
  std::int64_t bytes_received = 0;       // payload
  std::int64_t temporary_bytes = 0;      // most that is live at once
  std::int64_t peak_bytes = 0;           // with the rank's source and target shards
  std::int64_t wire_bytes_received = 0;  // with padding
  std::int64_t bytes_received_total = 0, wire_bytes_received_total = 0;
};

class MoveCoster {
 public:
  // `source_bytes` and `target_bytes` are the bytes of an element in the source's and in the target's dtype.
  MoveCoster(StateSpace& space, const CostModel& model, PartialRule rule, DType travel_dtype,
             std::int64_t source_bytes, std::int64_t target_bytes);

  MoveCost evaluate(const StateMove& move, Ends ends);

  // A lower bound of evaluate(), found without looking at who sends what.
  struct AtLeast {
    std::int64_t time_ps = 0, bytes_received = 0;
  };
  AtLeast at_least(const StateMove& move);
  // The effort of evaluate(): ranks and pieces that it looks at, counted up to `limit`.
  std::int64_t effort(const StateMove& move, std::int64_t limit);

  // The time of the casts from the source's dtype and to the target's, on the slowest rank.
  double cast_us(bool before, bool after) const;
  // The least that any move of the kind takes.
  std::int64_t least_ps(MoveKind kind) const;

  // Microseconds per byte between two ranks, and along a mesh axis, at full efficiency.
  double gap(std::int32_t a, std::int32_t b) const;
  double axis_gap(int side, int axis) const {
    return axis_gap_[static_cast<std::size_t>(side)][static_cast<std::size_t>(axis)];
  }
  double slowest_gap() const { return slowest_gap_; }
  double best_efficiency() const { return best_efficiency_; }  // the largest of any operation
  std::int64_t element_bytes() const { return element_bytes_; }
  // Bytes of a rank's source and target shards together, and the most over all ranks.
  std::int64_t ends_bytes(std::int32_t position) const;
  std::int64_t largest_ends_bytes() const { return largest_ends_bytes_; }

 private:
  double efficiency(MoveKind kind) const;
  double gap_to_peers(const StateMove& move) const;
  double group_time_us(const StateMove& move, double gap_to_peers, const RankTraffic& rank) const;
  void charge_alike(const StateMove& move, Ends ends, MoveCost& cost);
  void charge_groups(const StateMove& move, Ends ends, MoveCost& cost);
  void charge_local(const StateMove& move, Ends ends, MoveCost& cost);
  bool holds_neutral(const StateMove& move, std::int32_t position) const;
  void charge_exchange(const StateMove& move, Ends ends, MoveCost& cost);
  std::int64_t live_bytes(const StateMove& move, const RankTraffic& rank, Ends ends) const;

  StateSpace& space_;
  const CostModel& model_;
  PartialRule rule_;
  std::int64_t element_bytes_, source_bytes_, target_bytes_, largest_ends_bytes_ = 0;
  bool ends_are_even_ = false;  // the same bytes on every rank
  double copy_us_per_byte_;     // to read one byte and write one
  double best_efficiency_;
  double best_gap_, slowest_gap_ = 0;          // between any two ranks
  std::vector<std::vector<double>> axis_gap_;  // [side][axis]
  Traffic traffic_;
  std::vector<std::int32_t> members_;
  std::vector<RankTraffic> group_;
  std::vector<double> time_us_;
  std::vector<std::int64_t> bytes_;
};

}  // namespace cp::detail
