#include "sim/cost/timeline/host_cost.h"

#include <algorithm>

#include "shared/plan/host_place.h"

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

KernelPlace place_of(const Kernel& kernel, const Plan& plan) {
  const auto on_host = [&](const View& view) {
    return lies_on_host(plan.buffers[static_cast<std::size_t>(view.buffer)]);
  };
  if (const auto* copy = std::get_if<Copy>(&kernel)) {
    const bool from = on_host(copy->in), to = on_host(copy->out);
    return from && to ? KernelPlace::host : from || to ? KernelPlace::host_copy : KernelPlace::gpu;
  }
  const auto* rows = std::get_if<RowKernel>(&kernel);
  if (rows == nullptr) return KernelPlace::gpu;
  const auto all = [&](const std::vector<View>& views) {
    return std::all_of(views.begin(), views.end(), on_host);
  };
  return all(rows->reads) && all(rows->writes) && all(rows->updates) ? KernelPlace::host : KernelPlace::gpu;
}

}  // namespace cp::sim
