// The chains of operations that may take the whole time of a replay, split by the rates that they depend on.
#pragma once

#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/rate_times.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

// Returns chains in us. The first is the critical path; its times add up to the timeline's. What a kernel
// takes longer beside transfers than alone counts as transfers, beside merges as its own, and time in which
// nothing runs counts as the host's. The other chains are the kernels of the rank that computes most.
// `timeline` must be a replay of these plans.
std::vector<RateTimes> path_chains(const Timeline& timeline, std::span<const Plan> plans,
                                   const Cluster& cluster, const SoftwareProfile& software);

}  // namespace cp::sim
