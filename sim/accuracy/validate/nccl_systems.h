// The systems of nccl_gpus.csv as clusters that nobody measured: one node each, without curves of
// collectives.
#pragma once

#include <string>

#include "sim/cost/cluster/cluster.h"

namespace cp::sim::detail {

struct NcclSystem {
  Cluster cluster;
  bool fitted = false;  // its rows set the numbers of sim/cost/timeline/nccl_constants.h
};

// Throws InvalidInput with the names for one that is not there.
NcclSystem nccl_system(const std::string& name);

}  // namespace cp::sim::detail
