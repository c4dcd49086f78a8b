// Send/recv of one GPU with several others of its node at once.
#pragma once

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// GB/s that all of them reach together, each way: no more than the best single transfer that was measured,
// and over NVLink than an all-to-all (nccl_model.h). A GPU's links have more than what the library gets out
// of them. Infinite where no transfer was measured: then links alone bound them.
double together_gbps(const Cluster& cluster);

}  // namespace cp::sim
