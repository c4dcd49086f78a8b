// Plans of a parameter, run on the fabric with whole numbers that every dtype on their way holds.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shared/fully_shard/hsdp_param.h"
#include "tests/support/shard_data.h"

namespace cp::testing {

// By name of the buffer.
using NamedShards = std::map<std::string, Shards>;

// Checks the plans, runs them with what `in` has of their buffers of the caller, and returns those that they
// write.
NamedShards run_named(std::span<const Plan> plans, const NamedShards& in);

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
