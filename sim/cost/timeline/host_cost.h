// The cost of what happens in the host's memory (shared/plan/host_place.h): copies between a GPU and the
// host, and kernels of the host itself. It assumes that all GPUs of a node do the same at the same time, so
// each gets an equal part.
#pragma once

#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// The rates that one GPU of the node gets, in GB/s. A copy goes over the GPU's link to the host; over PCIe it
// gets at most its part of its switch's uplink. Copies the other way at the same time are as fast. The host's
// own kernels read and write their operands once, at the rate of its memory.
struct HostRates {
  double copy_gbps = 0, memory_gbps = 0;
};
HostRates host_rates(const Node& node);

}  // namespace cp::sim
