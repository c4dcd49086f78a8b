// A world that looks the same from each of several equal blocks of its ranks: one block stands for all,
// exactly.
//
// Shifting every rank by a block (around the end of the world) must change neither what the plans do and cost
// nor which links their transfers meet. Blocks are whole nodes, or the nodes of whole leaves where there are
// several.
#pragma once

#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

struct Fold {
  Rank world = 0, block = 0;  // block 0: nothing is folded

  bool folded() const { return block > 0; }
  int blocks() const { return folded() ? world / block : 1; }
  // The rank of the first block that stands for it.
  Rank representative(Rank rank) const { return folded() ? rank % block : rank; }
  // `rank` as seen from where `from` is when it is shifted to `to`, a whole number of blocks away.
  Rank shifted(Rank rank, Rank from, Rank to) const {
    return folded() ? (rank + to - from + world) % world : rank;
  }
};

// The smallest blocks for these plans of all ranks 0, 1, ..., which the cluster has just enough nodes for;
// not folded where there are none. Costs one pass over the plans.
Fold find_fold(std::span<const Plan> plans, const Cluster& cluster);

// How many blocks a group is shifted by until it is itself again: fold.blocks() where it never is before.
int period(const std::vector<Rank>& group, const Fold& fold);
// The same for a group and all that it becomes when it is shifted.
std::vector<Rank> orbit_key(const std::vector<Rank>& group, const Fold& fold);

}  // namespace cp::sim
