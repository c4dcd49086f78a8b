// Plans step by step, for the oracle of programs alone: what each step touches, all iterations unrolled, and
// which collectives meet. Said as naively as possible, and apart from shared/plan, whose types alone are
// used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"

namespace cp::sim::program {

using Numbers = std::vector<std::int64_t>;
using Refusal = std::optional<std::string>;  // why something is illegal; nothing where it is legal

struct Touch {
  const View* view = nullptr;
  bool reads = false, writes = false;
};
// Throws for kernels that program_oracle.h does not name: a broken invariant.
std::vector<Touch> touches(const Work& work, std::int32_t index_in_group);

// The elements of a view in an iteration, row-major.
Numbers elements(const View& view, std::int64_t iteration);
bool is_one_run(const View& view);
// -1: the group lacks it.
std::int32_t place_in(const Group& group, Rank rank);

struct Node {
  const Step* step = nullptr;
  StepId id = -1;
  std::int64_t iteration = 0, count = 1;
  std::size_t segment = 0;
  bool in_repeat = false;
};
// In issue order.
std::vector<Node> unroll(const Plan& plan);
// The rank's place in the group of its collective.
std::int32_t index_of(const Plan& plan, const Work& work);
// The node that an edge of `from` means; -1: none.
std::int64_t awaited(const std::vector<Node>& nodes, const Node& from, const Edge& edge);

struct Call {
  const Plan* plan = nullptr;
  const Node* node = nullptr;
  const Collective* work = nullptr;
  const Group* group = nullptr;
  std::int32_t index = 0;
  std::int64_t repeat = -1;  // which of the Repeats with collectives of the group
};
// By rank, in issue order. The calls point into `nodes`, those of each plan.
std::vector<std::vector<Call>> calls_of(std::span<const Plan> plans,
                                        const std::vector<std::vector<Node>>& nodes);

// Runs what is called in an order in which each rank takes part in one collective at a time, as it issues
// them: f(members) with the places in `calls` (rank, which). False: they do not all come to an end.
template <class F>
bool meet(std::span<const Plan> plans, const std::vector<std::vector<Call>>& calls, const F& f) {
  std::vector<std::size_t> at(plans.size(), 0);
  const auto group_at = [&](std::size_t p) {
    return at[p] < calls[p].size() ? calls[p][at[p]].group : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t p = 0; p < plans.size() && !moved; ++p) {
      const Group* group = group_at(p);
      if (group == nullptr) continue;
      std::vector<std::size_t> members;  // in the order of the group
      for (const Rank rank : group->ranks) {
        for (std::size_t q = 0; q < plans.size(); ++q) {
          if (plans[q].self == rank && group_at(q) != nullptr && *group_at(q) == *group) members.push_back(q);
        }
      }
      if (members.size() != group->ranks.size()) continue;
      f(members, at);
      for (const std::size_t q : members) ++at[q];
      moved = true;
    }
  }
  for (std::size_t p = 0; p < plans.size(); ++p) {
    if (at[p] < calls[p].size()) return false;
  }
  return true;
}

}  // namespace cp::sim::program
