// What goes on in the host's memory (shared/plan/host_place.h): copies between a GPU and the host, and
// kernels of the host itself. All GPUs of a node are taken to do the same at the same time.
#pragma once

#include <cstdint>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// GB/s that one GPU of the node has. A copy goes over its link to the host, PCIe as far as its switch's part
// of the uplink; the other way at the same time is as fast. The host's own kernels read and write their
// operands once, at its memory's rate.
struct HostRates {
  double copy_gbps = 0, memory_gbps = 0;
};
HostRates host_rates(const Node& node);

// Where a kernel runs.
enum class KernelPlace : std::uint8_t { gpu, host_copy, host };
KernelPlace place_of(const Kernel& kernel, const Plan& plan);

}  // namespace cp::sim
