// Searches exhaustively for the cheapest redistribution, to compare the planner with.
//
// The search knows every layout of a small tensor on the meshes involved, every move between any two layouts,
// and what each move costs every rank (moves.h, move_costs.h). It follows all chains of moves: no estimate
// guides it, and no candidate is left out. A move is over when its slowest rank is, and the time of a chain
// is the sum over its moves. Chains are followed in the order of their time so far, up to the time of the
// slowest answer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/redistribute/cost_model.h"
#include "sim/proof/exhaustive/move_costs.h"

namespace cp::sim {

class ExhaustiveSearch {
 public:
  struct Step {
    MoveKind kind = MoveKind::slice;
    std::size_t from = 0, to = 0;  // numbers in layouts()
  };
  struct Chain {
    std::int64_t time_ps = 0;
    std::vector<Step> steps;
  };

  // Prepares the search from any layout on the mesh `source` to any layout on the mesh `target`; the two may
  // be equal, and are then one mesh. All partial placements have the same reduction. `max_memory_factor` is
  // that of RedistributeOptions. Throws InvalidInput for tensors above Holdings::kMaxElements. Afterwards the
  // object is immutable, and any number of threads may search.
  ExhaustiveSearch(const Mesh& source, const Mesh& target, const Shape& shape, DType dtype,
                   const CostModel& cost, double max_memory_factor = 1, ReduceOp reduction = ReduceOp::sum);

  ReduceOp reduction() const { return reduction_; }

  // The layouts on the source mesh and, if the target mesh is another, those on the target mesh behind them.
  const std::vector<Written>& layouts() const { return layouts_; }
  std::size_t num_sources() const { return num_sources_; }
  std::size_t first_target() const { return same_mesh_ ? 0 : num_sources_; }

  // The cheapest chain from the layout `source` to each layout from first_target() on. Nothing if the pair is
  // illegal (is_legal_pair) or no chain keeps the memory bound.
  std::vector<std::optional<Chain>> cheapest(std::size_t source) const;
  // The bytes that the temporaries of the pair may take on each rank: max_memory_factor x 2M, with M as in
  // shared/redistribute/redistribution.h.
  double bound_bytes(std::size_t source, std::size_t target) const;

  // The ranks of both meshes, in the order of the figures in a MoveCost.
  const MeshPair& world() const { return world_; }
  // What the search counts for a move: one figure for each way to do it, and none if the rules know no such
  // move. `is_last` says whether the move ends its chain: only then may it go straight to the target.
  std::vector<const MoveCost*> costs_of(const Move& move, bool is_last) const;

  std::string to_string(const Chain& chain) const;

 private:
  struct Edge {
    MoveKind kind = MoveKind::slice;
    std::size_t to = 0;
    MoveCost cost;
  };
  struct Label;
  class Run;

  void find_classes();
  void find_moves(const CostModel& cost);

  bool same_mesh_;
  ReduceOp reduction_;
  MeshPair world_;
  double max_memory_factor_;
  std::vector<Written> layouts_;
  std::size_t num_sources_ = 0;
  std::map<std::pair<std::string, std::string>, std::size_t> number_of_;  // by mesh and placements
  std::vector<std::size_t> class_of_;  // by layout: equal numbers for equal index sets and contributions
  // By layout: the moves to any layout of its mesh.
  std::vector<std::vector<Edge>> moves_;
  // By layout: the moves straight to any target. If that is on another mesh, also those that arrive on the
  // way to it.
  std::vector<std::vector<Edge>> straight_;
};

}  // namespace cp::sim
