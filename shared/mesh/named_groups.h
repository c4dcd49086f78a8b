// The groups of ranks that the degrees of a run make, by name: those of every axis of the mesh, of its
// aliases, and of the experts.
//
// Experts are sharded on a grid of their own. Under the nested rule it is the pool dp_shard x cp x tp in
// another shape, row-major: efsdp x ep x etp. Under the peer rule ep is an axis of the mesh, and the pool is
// efsdp x etp. For example, of dp_shard=2,cp=2,tp=2 with ep=2 nested, ranks 0 to 7 are 2 x 2 x 2: ep has the
// groups {0, 2}, {1, 3}, {4, 6}, {5, 7}, and efsdp {0, 4}, {1, 5}, {2, 6}, {3, 7}.
#pragma once

#include <string>
#include <vector>

#include "shared/base/types.h"
#include "shared/mesh/mesh.h"
#include "shared/mesh/parallel_dims.h"

namespace cp {

struct NamedGroups {
  std::string name;
  // The axes of the mesh behind an alias; empty for an axis, and for groups of the experts' grid.
  std::vector<std::string> axes = {};
  bool of_experts = false;
  std::vector<std::vector<Rank>> groups;  // each rank of the world is in one of them

  int size() const { return static_cast<int>(groups.front().size()); }
  const std::vector<Rank>& of(Rank rank) const;  // throws InvalidInput for a rank outside the world
};

// The axes of dims.build_mesh(), its aliases fsdp, dp and loss, and with ep > 1 also ep (if it is no axis),
// etp and efsdp: the ranks that hold shards of the same experts, as ParallelDims::efsdp_size() counts them.
std::vector<NamedGroups> named_groups(const ParallelDims& dims);

}  // namespace cp
