// What must hold of the times of any plans: they end, no link carries more than it can, no part of a rank's
// time is counted twice, and the folded replay takes as long as the simulated one.
#pragma once

#include <span>
#include <string>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// Makes the cluster one of `nodes` nodes with that many GPUs each, a NIC for each GPU. Links and GPUs become
// so slow that what small cases send and compute counts: 8 KB take as long as half a million operations, and
// latencies are next to nothing. If there are four nodes, two hang on each leaf.
Cluster of_small_nodes(Cluster cluster, int nodes, int gpus);

// Checks the times of the plans. `plans` are those of all ranks, and have passed check(). `cluster` is a
// preset; it gets as many nodes as the last rank needs. If there are few ranks, they are also spread over
// two, three or four small nodes, if these divide them. Throws PropertyFailure ("timeline").
void check_timeline(std::span<const Plan> plans, const std::string& cluster, const Trial& trial);

}  // namespace cp::sim
