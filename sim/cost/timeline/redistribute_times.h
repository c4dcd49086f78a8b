// The times of redistributions on a cluster. The search for the best chain uses a cost model in closed form
// (shared/redistribute/cost_model.h), whose figures are taken from the cluster. The plans that it finds are
// then replayed (timeline.h), as those of attention and of whole steps are, and get their times from that.
#pragma once

#include "shared/plan/target.h"
#include "shared/redistribute/redistribution.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Plans of more ranks are not replayed and keep the times of the closed form. Chosen: a replay of more ranks
// takes too long for an answer at the prompt.
inline constexpr int kMostReplayedRanks = 512;

// Links and memory are those of the cluster; latencies are those of its collectives; efficiencies are what
// its collectives and transfers of 64 MiB a rank reach.
CostModel cost_model_of(const Cluster& cluster);

// Of all ranks of both meshes, which have GPUs on the cluster.
bool is_replayed(const Redistribution& redistribution);

// Replaces the times of the redistribution, where is_replayed(): the whole, and each step alone. They need
// not add up: ranks may run ahead, and casts are no steps. least_possible goes with the time. `target`: what
// the plans are made for.
void replay_times(const Cluster& cluster, const Target& target, Redistribution& redistribution);

// What the factor takes at the end, by replay.
double replayed_scale_us(const Cluster& cluster, const Target& target, const Redistribution& redistribution,
                         double scale);

}  // namespace cp::sim
