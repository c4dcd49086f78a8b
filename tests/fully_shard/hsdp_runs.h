// Plans of a parameter, run on the fabric with whole numbers that every dtype on their way holds.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "shared/fully_shard/hsdp_param.h"
#include "shared/plan/check.h"
#include "tests/support/shard_data.h"

namespace cp::testing {

using sim::NamedShards;

// Checks the plans, runs them with what `in` has of their buffers of the caller, and returns those that they
// write.
inline NamedShards run_named(std::span<const Plan> plans, const NamedShards& in) {
  check(plans);
  return sim::run_named(plans, in);
}

// Of all ranks of the mesh, ascending.
template <class F>
std::vector<Plan> plans_of(const Layout& layout, const F& plan_of_rank) {
  std::vector<Rank> ranks = layout.mesh.ranks();
  std::sort(ranks.begin(), ranks.end());
  std::vector<Plan> plans;
  for (const Rank rank : ranks) plans.push_back(plan_of_rank(rank));
  return plans;
}

}  // namespace cp::testing
