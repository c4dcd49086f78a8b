// The chains of operations that may take the whole time of a replay, by the rates that they hang on.
#pragma once

#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/rate_times.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

// In us. The first is the critical path, whose times add up to the timeline's: what a kernel takes longer
// beside transfers than alone is the transfers', and what nothing runs in, the host's. The others are kernels
// of one rank alone, of that which computes most. `timeline` is of these plans.
std::vector<RateTimes> path_chains(const Timeline& timeline, std::span<const Plan> plans,
                                   const Cluster& cluster, const SoftwareProfile& software);

}  // namespace cp::sim
