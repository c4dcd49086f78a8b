// The steps of one rank with their Repeats unrolled, and which of them happen before which. Private to
// check*.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/check_internal.h"

namespace cp::checker {

// One execution of a step: its number in issue order.
using Node = std::int32_t;

// A node happens after the nodes before it on its stream, after those that its edges name, and after whatever
// happens before any of these. Vector clocks hold this (see order.h for their source); the checker computes
// its own, so that a mistake of the builder's cannot hide in both.
class Unrolled {
 public:
  // The plan must have passed check_structure. Storage is kept from one plan to the next.
  void assign(const RankPlan& rank);

  Node size() const { return static_cast<Node>(refs_.size()); }
  const StepRef& ref(Node node) const { return *refs_[idx(node)]; }
  std::int64_t iteration(Node node) const {
    const Place& place = places_[idx(ref(node).id)];
    return (node - place.first) / place.body;
  }
  bool before_or_same(Node a, Node b) const {
    const std::size_t stream = idx(ref(a).step->stream);
    return clock(a)[stream] <= clock(b)[stream];
  }

  // How many iterations of the Repeat must be unrolled to show everything that repeat.count iterations would.
  // The last of them uses the same slots as the true last one.
  static std::int64_t iterations(const RankPlan& rank, const Repeat& repeat);

 private:
  // Where a step's executions are: iteration i is the node first + i * body.
  struct Place {
    Node first = 0, body = 1;
    std::int64_t iterations = 1;
  };

  void place_steps(const RankPlan& rank);
  void run_clocks(const RankPlan& rank);
  Node named(const RankPlan& rank, const Edge& edge, Node from) const;

  // For each stream, how many of its nodes happen before this one, itself included.
  std::int32_t* clock(Node node) { return clocks_.data() + idx(node) * streams_; }
  const std::int32_t* clock(Node node) const { return clocks_.data() + idx(node) * streams_; }

  std::size_t streams_ = 0;
  std::vector<Place> places_;         // by StepId
  std::vector<const StepRef*> refs_;  // by node
  std::vector<std::int32_t> clocks_;
  std::vector<Node> last_on_stream_;
};

}  // namespace cp::checker
