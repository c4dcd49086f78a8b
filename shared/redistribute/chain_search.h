// Searches the cheapest chain of moves. Internal to shared/redistribute.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "shared/redistribute/layout_graph.h"

namespace cp::detail {

// The limits that a chain must keep, in bytes on any rank.
struct Limits {
  double temporary_bytes = std::numeric_limits<double>::infinity();  // of temporaries
  // Of temporaries and the rank's source and target shards.
  double peak_bytes = std::numeric_limits<double>::infinity();
};

// The cost of a chain. Times and bytes on the wire are sums over its moves; the peak of memory is the
// largest. They are whole picoseconds and bytes, so that equal costs compare equal and ties are broken in the
// stated order: by time, then bytes; or by the bytes of the rank that receives most, then of all ranks, then
// peak, then time.
struct ChainCost {
  std::int64_t primary = 0, secondary = 0, tertiary = 0, last = 0;
  std::int32_t steps = 0;
  auto operator<=>(const ChainCost&) const = default;
};

struct Chain {
  std::vector<StateMove> moves;  // empty if the layouts are equivalent
  ChainCost cost;
};

// What a search does that has spent its effort and knows no chain.
enum class Patience : std::uint8_t {
  none,     // gives up
  some,     // goes on for as long again, and gives up
  endless,  // then follows the most promising moves to their ends until one is the target's layout
};

// A* search over the layouts of a graph (Hart, Nilsson and Raphael 1968), in two passes: first with the moves
// that source and target suggest; then, if there are few enough layouts, with all moves, of which only those
// are looked at that could still lead to a better chain.
//
// Neither pass looks at more than its share of ranks and pieces, whatever the request, and what is passed
// over for this reason is counted in the bound. (Endless patience alone goes beyond its share, and no further
// than to the first chain.) So the answer is the best chain, or a chain with a bound on how far it is from
// the best. It is the same on every machine, since nothing depends on a clock.
class ChainSearch {
 public:
  ChainSearch(LayoutGraph& graph, Objective objective, std::int64_t cast_ps, bool try_all_moves)
      : graph_(graph), objective_(objective), cast_ps_(cast_ps), try_all_moves_(try_all_moves) {}

  struct Answer {
    std::optional<Chain> best;        // nothing if no chain was found that keeps the limits
    std::int64_t least_possible = 0;  // by the objective, no chain that keeps the limits costs less
  };
  // `share` is the part of a request's effort that this search may take.
  Answer run(const Limits& limits, double share, Patience patience);

 private:
  struct Label {
    std::int32_t node, parent;
    ChainCost spent, finished;  // the cost so far; and with the least that is left
    LayoutGraph::Edge* edge;    // the edge that led here
    bool superseded = false;
    bool expanded = false;
    // Only a bound of the edge's own cost is known. The cost is found when it is this label's turn.
    bool is_bound = false;
  };

  void pass(const Limits& limits, Breadth breadth, std::int64_t effort, Patience patience);
  void expand(std::int32_t label, const Limits& limits, Breadth breadth);
  std::int32_t best_since(std::size_t first, bool with_bounds) const;
  void try_edge(std::int32_t label, LayoutGraph::Edge& edge, const Limits& limits);
  void follow(std::int32_t label, LayoutGraph::Edge& edge, const Limits& limits);
  ChainCost finished(const ChainCost& spent, std::int32_t node) const;
  bool hopeless(std::int64_t least) const { return best_ && least > best_->cost.primary; }
  void finish(std::int32_t label, const Limits& limits);
  void try_short_chains(const Limits& limits);
  void push(Label label);
  void open(std::int32_t label);
  ChainCost and_then(const ChainCost& spent, std::int64_t time_ps, std::int64_t wire_bytes,
                     std::int64_t wire_bytes_total, std::int64_t peak_bytes) const;
  std::int64_t primary(std::int64_t time_ps, std::int64_t wire_bytes) const {
    return objective_ == Objective::time ? time_ps : wire_bytes;
  }
  bool later(std::int32_t a, std::int32_t b) const;
  void keep(std::int32_t label);

  LayoutGraph& graph_;
  Objective objective_;
  std::int64_t cast_ps_;
  bool try_all_moves_;
  std::vector<Label> labels_;
  std::vector<std::int32_t> best_label_;  // by node; -1 if there is none
  std::vector<std::int32_t> open_;        // a heap of labels
  std::optional<Chain> best_;
  std::int64_t effort_left_ = 0;
  // The least that a chain can cost that was not followed because the effort was spent.
  std::int64_t least_passed_over_ = 0;
};

}  // namespace cp::detail
