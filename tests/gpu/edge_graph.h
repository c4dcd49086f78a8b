// Which edges of plans say something that nothing else says: the transitive reduction of the order of all
// ranks' steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::testing {

// An edge of a plan: the `index`-th of the step.
struct EdgePlace {
  Rank rank = 0;
  StepId step = -1;
  std::size_t index = 0;
};
std::vector<EdgePlace> edges_of(const std::vector<Plan>& plans);
const Edge& edge_at(const Plan& plan, const EdgePlace& place);
Plan without(Plan plan, const EdgePlace& place);
std::string to_text(const std::vector<Plan>& plans, const EdgePlace& place);

// The order of the steps of all ranks, each in each iteration, with a begin and an end. A step begins after
// the end of the one before it on its stream and of what its edges name. A collective ends after its begin on
// each rank that it receives from or, which is stricter than NCCL, sends to.
class EdgeGraph {
 public:
  // `takes_turns`: each collective of a rank begins after the end of the rank's last one, on whichever stream
  // that is.
  EdgeGraph(const std::vector<Plan>& plans, bool takes_turns);

  // Whether the other edges, streams and turns of the rank imply the edge in all iterations.
  bool is_implied(const EdgePlace& place) const { return is_implied(place, false); }
  // The same with the collectives, which order the steps of one rank by way of others.
  bool is_implied_by_peers(const EdgePlace& place) const { return is_implied(place, true); }

 private:
  using Node = std::size_t;  // 2 * launch: its begin; 2 * launch + 1: its end
  struct Before {
    Node node = 0;
    const Edge* edge = nullptr;  // that says so; null: nothing that can be dropped does
    bool of_peer = false;
  };
  using Launch = std::pair<StepId, std::int64_t>;  // a step in an iteration

  void add_rank(const Plan& plan, bool takes_turns);
  void add_collectives(const std::vector<Plan>& plans);
  bool is_implied(const EdgePlace& place, bool by_peers) const;
  bool is_before(Node first, Node last, const Edge* without, bool by_peers) const;

  const std::vector<Plan>& plans_;
  std::vector<std::vector<Before>> before_;     // by node: what ends or begins before it
  std::vector<std::map<Launch, Node>> begins_;  // by plan
  std::vector<std::vector<std::pair<const Step*, Node>>> collectives_;  // by plan, in order of launch
};

}  // namespace cp::testing
