// The systems of nccl_gpus.csv as clusters of one node that nobody measured: without curves of collectives.
// Internal to sim/accuracy/validate.
#pragma once

#include <string>

#include "sim/cost/cluster/cluster.h"

namespace cp::sim::detail {

struct NcclSystem {
  Cluster cluster;
  bool fitted = false;  // its rows set numbers of sim/cost/timeline/nccl_constants.h
};

// Throws InvalidInput that lists the names if there is no such system.
NcclSystem nccl_system(const std::string& name);

}  // namespace cp::sim::detail
