// Plans step by step, for the oracle of programs only: what each step touches, with all iterations unrolled,
// and which collectives meet. It is said as naively as possible, and uses nothing of shared/plan but its
// types.
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

// A view that a step reads or writes.
struct Touch {
  const View* view = nullptr;
  bool reads = false, writes = false;
};
// The views that the operation touches, on the rank with this index in its group. A kernel that
// program_oracle.h does not name breaks an invariant, which aborts the process.
std::vector<Touch> touches(const Work& work, std::int32_t index_in_group);

// The numbers of the elements of a view in an iteration, in the buffer, row-major.
Numbers elements(const View& view, std::int64_t iteration);
bool is_one_run(const View& view);  // whether the elements are contiguous
// The place of the rank in the group; -1 if the group lacks it.
std::int32_t place_in(const Group& group, Rank rank);

// A step in one iteration.
struct Node {
  const Step* step = nullptr;
  StepId id = -1;
  std::int64_t iteration = 0, count = 1;
  std::size_t segment = 0;
  bool in_repeat = false;
};
// All steps of the plan, with each iteration of each Repeat, in issue order.
std::vector<Node> unroll(const Plan& plan);
// The index of the plan's rank in the group of its collective.
std::int32_t index_of(const Plan& plan, const Work& work);
// The position in `nodes` of the step that an edge of `from` waits for; -1 if there is none.
std::int64_t awaited(const std::vector<Node>& nodes, const Node& from, const Edge& edge);

// A collective that a rank calls.
struct Call {
  const Plan* plan = nullptr;
  const Node* node = nullptr;
  const Collective* work = nullptr;
  const Group* group = nullptr;
  std::int32_t index = 0;
  std::int64_t repeat = -1;  // which of the Repeats that have collectives of the group; -1: it comes once
};
// The calls of each rank, in issue order. They point into `nodes`, which has the nodes of each plan.
std::vector<std::vector<Call>> calls_of(std::span<const Plan> plans,
                                        const std::vector<std::vector<Node>>& nodes);

// Lets the calls happen in an order in which each rank takes part in one collective at a time, as it issues
// them. Calls f(members, at) for each: `members` are positions in `plans` in the order of the group, and
// at[member] is the call's place in calls[member]. Returns false if not all calls come to an end.
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
