// How fast one GPU exchanges data by send/recv with several others of its node at the same time.
#pragma once

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Returns the GB/s, each way, that all these transfers reach together. It is at most that of the best single
// transfer that was measured and, over NVLink, that of an all-to-all (nccl_model.h), because a library does
// not reach the full rate of a GPU's links. Infinite if no transfer was measured; then only links limit them.
double together_gbps(const Cluster& cluster);

}  // namespace cp::sim
