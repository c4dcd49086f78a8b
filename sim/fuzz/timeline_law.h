// What must hold of the times of any plans: they end, no link carries more than it can, no rank receives in
// less time than its bytes take, and folded replays are the simulated ones.
#pragma once

#include <span>
#include <string>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// `nodes` nodes of that many GPUs, a NIC for each, all of them so slow that what small cases send and compute
// counts: 8 KB take as long as half a million operations, and latencies next to nothing. Of four nodes two
// hang on a leaf.
Cluster of_small_nodes(Cluster cluster, int nodes, int gpus);

// `plans`: of all ranks, which have passed check(). `cluster`: a preset; as many nodes as the last rank
// needs. Few ranks are spread over two to four small nodes too, where that divides them.
void check_timeline(std::span<const Plan> plans, const std::string& cluster, const Trial& trial);

}  // namespace cp::sim
