// The search for the cheapest chain of moves. Internal to shared/redistribute.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "shared/redistribute/bounds.h"
#include "shared/redistribute/candidates.h"
#include "shared/redistribute/move_cost.h"

namespace cp::detail {

// A* over layouts. A chain's cost is the maximum over the ranks of each rank's sum, which is not a sum over
// moves: a label therefore carries what every rank has spent, and one label makes another superfluous only if
// no rank has spent more. Costs are whole picoseconds and bytes, so that equal costs compare equal and the
// order of ties is the stated one.
class Search {
 public:
  // `limits`: bytes of temporaries that each rank may hold, by position. With a cast before (after) the moves
  // the first (last) shard is a temporary too.
  Search(LayoutSpace& space, MoveCoster& coster, const RedistributeOptions& options, bool cast_before,
         bool cast_after, std::vector<double> limits);

  // The best chain, empty when the layouts are equivalent; nothing when none keeps the limits.
  std::optional<std::vector<StateMove>> run();

 private:
  struct Label {
    std::int32_t state, parent;
    std::int32_t steps;
    double primary, secondary;  // lower bounds of the finished chain
    StateMove move;             // that led here
    bool superseded = false;
  };
  struct StateInfo {
    State state;
    bool is_goal = false;
    std::vector<double> time_left, bytes_left;  // by area of the bounds
    std::vector<std::int32_t> labels;
  };

  std::int32_t state_id(const State& state);
  void expand(std::int32_t label);
  void try_move(std::int32_t label, const StateMove& move);
  void push(Label label);
  double finished(const double* spent, const std::vector<double>& left) const;
  bool dominated(const StateInfo& info, std::int32_t steps) const;
  bool later(std::int32_t a, std::int32_t b) const;
  double* spent(std::int32_t label) {
    return spent_.data() + 2 * num_ranks_ * static_cast<std::size_t>(label);
  }
  const double* spent(std::int32_t label) const {
    return spent_.data() + 2 * num_ranks_ * static_cast<std::size_t>(label);
  }

  LayoutSpace& space_;
  MoveCoster& coster_;
  const RedistributeOptions& options_;
  bool cast_before_, cast_after_;
  std::vector<double> limits_;
  Bounds bounds_;
  std::size_t num_ranks_;
  std::vector<Label> labels_;
  std::vector<double> spent_;  // by label: picoseconds of all ranks, then bytes of all ranks
  std::vector<double> next_;   // the same for the label being made
  std::vector<double> quick_time_, quick_bytes_;
  std::vector<StateInfo> states_;
  std::unordered_map<State, std::int32_t, StateHash> state_index_;
  std::vector<std::int32_t> open_;  // heap of labels
  std::vector<StateMove> candidates_;
  MoveCost cost_;
  double best_primary_;
};

}  // namespace cp::detail
