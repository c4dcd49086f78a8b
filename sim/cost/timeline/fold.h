// Fold: if a world looks the same from each of several equal blocks of its ranks, one block stands for all of
// them, and the result is exact.
//
// The condition is that shifting every rank by one block (around the end of the world) changes neither what
// the plans do and cost, nor which links their transfers share. Blocks are whole nodes; if there are several
// leaf switches, they are the nodes of whole leaves.
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
  // The rank of the first block that stands for `rank`.
  Rank representative(Rank rank) const { return folded() ? rank % block : rank; }
  // The rank that `rank` becomes when everything is shifted such that `from` becomes `to`, which is a whole
  // number of blocks away.
  Rank shifted(Rank rank, Rank from, Rank to) const {
    return folded() ? (rank + to - from + world) % world : rank;
  }
};

// Finds the smallest blocks for the plans of all ranks 0, 1, ... of a world that fills the cluster's nodes.
// Returns an unfolded world if there are no such blocks. It takes one pass over the plans.
Fold find_fold(std::span<const Plan> plans, const Cluster& cluster);

// By how many blocks a group must be shifted until it is itself again; at most fold.blocks().
int period(const std::vector<Rank>& group, const Fold& fold);
// A key that is the same for a group and for all groups that it becomes by shifting.
std::vector<Rank> orbit_key(const std::vector<Rank>& group, const Fold& fold);

}  // namespace cp::sim
