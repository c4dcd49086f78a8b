// Exhaustive search for the cheapest redistribution, to compare the planner with.
//
// It knows every layout of a small tensor on the meshes involved, every move between any two of them and what
// each costs every rank (moves.h, move_costs.h), and follows all chains: no estimate guides it and no
// candidate is left out. A move is over when its slowest rank is, and the time of a chain is the sum over its
// moves. Chains are followed in the order of their time so far, up to that of the slowest answer.
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
    std::size_t from = 0, to = 0;  // into layouts()
  };
  struct Chain {
    std::int64_t time_ps = 0;
    std::vector<Step> steps;
  };

  // Prepares all pairs of a source layout on one mesh and a target layout on the same mesh, or on another
  // (equal meshes are the same). All partial placements have the one reduction. Afterwards it is immutable:
  // any number of threads may search.
  ExhaustiveSearch(const Mesh& source, const Mesh& target, const Shape& shape, DType dtype,
                   const CostModel& cost, double max_memory_factor = 1, ReduceOp reduction = ReduceOp::sum);

  ReduceOp reduction() const { return reduction_; }

  // The source mesh's layouts, then, where it is another, those of the target mesh.
  const std::vector<Written>& layouts() const { return layouts_; }
  std::size_t num_sources() const { return num_sources_; }
  std::size_t first_target() const { return same_mesh_ ? 0 : num_sources_; }

  // The cheapest chain from a source to each layout from first_target() on; nothing where the pair is illegal
  // (is_legal_pair) or no chain keeps the memory bound.
  std::vector<std::optional<Chain>> cheapest(std::size_t source) const;
  // What the temporaries of the pair must keep on each rank: max_memory_factor x 2M.
  double bound_bytes(std::size_t source, std::size_t target) const;

  // The ranks that the figures of a move are about.
  const MeshPair& world() const { return world_; }
  // What the search counts for a move: one figure for each way to do it, none where the rules know no such
  // move. Straight to the target only where it is the last.
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
  std::vector<std::size_t> class_of_;     // by layout: equal numbers for equal index sets and contributions
  std::vector<std::vector<Edge>> moves_;  // by layout: to any layout of its mesh
  std::vector<std::vector<Edge>>
      straight_;  // by layout: to any target; on another mesh also on the way to it
};

}  // namespace cp::sim
