#include "shared/redistribute/layout_graph.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp::detail {
std::int32_t LayoutGraph::node_of(const State& state) {
  const auto [place, added] = index_.try_emplace(state, static_cast<std::int32_t>(nodes_.size()));
  if (added) {
    const Bounds::Left left = bounds_.find(state);
    nodes_.push_back({state, space_.equivalent(state, space_.target()), left});
  }
  return place->second;
}

std::vector<LayoutGraph::Edge>& LayoutGraph::edges(std::int32_t node, Breadth breadth) {
  const auto [place, added] = edges_[idx(static_cast<int>(breadth))].try_emplace(node);
  std::vector<Edge>& edges = place->second;
  if (!added) return edges;
  listed_.clear();
  const State state = nodes_[idx(node)].state;
  list_candidates(space_, state, breadth, listed_);
  edges.reserve(listed_.size());
  for (const bool straight : {true, false}) {
    for (const StateMove& move : listed_) {
      if ((move.to == space_.target()) == straight)
        edges.push_back({move.kind, move.axes, move.to, -1, {}, {}, false});
    }
  }
  return edges;
}

StateMove LayoutGraph::move(std::int32_t from, const Edge& edge) const {
  StateMove move{edge.kind, edge.axes, nodes_[idx(from)].state, edge.to};
  // A chain ends in the target itself, and not in a layout that is only equal to it.
  if (nodes_[idx(edge.node)].is_goal && edge.to.side == space_.target().side) move.to = space_.target();
  return move;
}

const MoveCoster::AtLeast& LayoutGraph::at_least(std::int32_t from, Edge& edge) {
  if (!edge.bounded) edge.least = coster_.at_least(move(from, edge));
  edge.bounded = true;
  return edge.least;
}

const MoveCost& LayoutGraph::cost(std::int32_t from, Edge& edge) {
  if (!edge.cost) {
    const bool first = from == source_;
    const bool is_goal = nodes_[idx(edge.node)].is_goal;
    edge.cost = coster_.evaluate(move(from, edge),
                                 {first && !cast_before_, is_goal && !cast_after_, first && cast_before_});
    CP_INVARIANT(!edge.bounded || (edge.least.time_ps <= edge.cost->time_ps &&
                                   edge.least.bytes_received <= edge.cost->bytes_received),
                 "a move of ", edge.cost->time_ps, " ps and ", edge.cost->bytes_received,
                 " bytes is bounded by ", edge.least.time_ps, " ps and ", edge.least.bytes_received,
                 " bytes: the search would pass over it");
  }
  return *edge.cost;
}

std::int64_t LayoutGraph::effort(std::int32_t from, Edge& edge, std::int64_t limit) {
  return edge.cost ? 0 : coster_.effort(move(from, edge), limit);
}

}  // namespace cp::detail
