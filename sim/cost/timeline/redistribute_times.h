// Redistributions on a cluster: their plans are replayed there (timeline.h), as those of attention and of
// whole steps are. The search for the best chain has a cost model in closed form
// (shared/redistribute/cost_model.h); its figures come from the cluster, and the times of what it finds from
// the replay.
#pragma once

#include "shared/plan/target.h"
#include "shared/redistribute/redistribution.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Plans of more ranks are not replayed: they have the times of the closed form.
inline constexpr int kMostReplayedRanks = 512;

// Links and memory are the cluster's, latencies those of its collectives, efficiencies what its collectives
// and transfers of 64 MiB a rank reach.
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
