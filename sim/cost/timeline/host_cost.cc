#include "sim/cost/timeline/host_cost.h"

#include <algorithm>

namespace cp::sim {

HostRates host_rates(const Node& node) {
  double copy = node.host_link_gbps;
  if (copy == 0) {
    copy = node.pcie_gbps;
    if (node.pcie_root_gbps > 0) copy = std::min(copy, node.pcie_root_gbps / node.gpus_per_pcie_switch);
    if (node.pcie_host_gbps > 0) copy = std::min(copy, node.pcie_host_gbps / node.gpus);
  }
  const double memory = node.host_memory_gbps > 0 ? node.host_memory_gbps / node.gpus : 2 * copy;
  return {copy, memory};
}

}  // namespace cp::sim
