// A LayoutGraph has the layouts of a redistribution as nodes and its moves as edges. Both are found, and
// costed, when they are asked for.
//
// Internal to shared/redistribute. One graph serves all searches of a request, so that nothing is found
// twice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "shared/redistribute/bounds.h"
#include "shared/redistribute/candidates.h"
#include "shared/redistribute/move_cost.h"

namespace cp::detail {

class LayoutGraph {
 public:
  struct Node {
    State state;
    bool is_goal = false;  // the target, or a layout with the same index sets
    Bounds::Left left;     // what every chain from here to the target costs at the least
  };
  struct Edge {
    MoveKind kind;
    AxisList axes;
    State to;
    std::int32_t node = -1;  // the node of `to`, once asked for
    MoveCoster::AtLeast least;
    std::optional<MoveCost> cost;
    bool bounded = false;  // `least` is known
  };

  // If there is a cast before (after) the moves, the first (last) shard is a temporary, too.
  LayoutGraph(StateSpace& space, MoveCoster& coster, const CostModel& model, bool cast_before,
              bool cast_after)
      : space_(space),
        coster_(coster),
        bounds_(space, coster, model),
        cast_before_(cast_before),
        cast_after_(cast_after),
        source_(node_of(space.source())) {}

  std::int32_t source() const { return source_; }
  const Node& node(std::int32_t id) const { return nodes_[static_cast<std::size_t>(id)]; }
  std::size_t num_nodes() const { return nodes_.size(); }
  int num_ranks() const { return space_.num_ranks(); }

  // The edges from a node. Those that lead straight to the target come first, since they bound all others.
  std::vector<Edge>& edges(std::int32_t node, Breadth breadth);
  std::int32_t target_of(Edge& edge) {
    if (edge.node < 0) edge.node = node_of(edge.to);
    return edge.node;
  }
  std::int64_t least_ps(const Edge& edge) const { return coster_.least_ps(edge.kind); }
  // A lower bound of the move's cost. target_of() must have been called before.
  const MoveCoster::AtLeast& at_least(std::int32_t from, Edge& edge);
  const MoveCost& cost(std::int32_t from, Edge& edge);
  // The effort of cost(), in ranks and pieces, counted up to `limit`; 0 if the cost is known.
  std::int64_t effort(std::int32_t from, Edge& edge, std::int64_t limit);

  StateMove move(std::int32_t from, const Edge& edge) const;

 private:
  std::int32_t node_of(const State& state);

  StateSpace& space_;
  MoveCoster& coster_;
  Bounds bounds_;
  bool cast_before_, cast_after_;
  std::vector<Node> nodes_;
  std::unordered_map<State, std::int32_t, StateHash> index_;
  std::array<std::unordered_map<std::int32_t, std::vector<Edge>>, 2> edges_;  // by breadth, by node
  std::vector<StateMove> listed_;
  std::int32_t source_;
};

}  // namespace cp::detail
