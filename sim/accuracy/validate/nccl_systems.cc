#include "sim/accuracy/validate/nccl_systems.h"

#include <algorithm>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/cluster/read_cluster.h"

namespace cp::sim::detail {
namespace {

struct Known {
  const char* name;
  const char* preset;  // whose figures it has
  bool fitted;
};

constexpr Known kKnown[] = {
    {"A100", "dgx-a100", true},      {"H100", "dgx-h100", true},  {"H200", "hgx-h200", false},
    {"B200", "hgx-b200", true},      {"B300", "hgx-b200", false}, {"GB200", "gb200-nvl72", false},
    {"GB300", "gb200-nvl72", false}, {"L40S", "l20-pcie", false}, {"RTX PRO 6000", "l20-pcie", true},
};

// Makes the cluster a server of PCIe cards with two on a switch. Rates are in GB/s: of a card's slot, of what
// leaves a switch, and of the host as a whole (0: no limit).
void set_pcie(Cluster& cluster, double card_gbps, double root_gbps, double host_gbps, double latency_us) {
  cluster.node.gpus_per_pcie_switch = 2;
  cluster.node.pcie_gbps = card_gbps, cluster.node.pcie_root_gbps = root_gbps;
  cluster.node.pcie_host_gbps = host_gbps;
  cluster.transfer.intra_node_latency_us = latency_us;
}

}  // namespace

NcclSystem nccl_system(const std::string& name) {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    names.emplace_back(known.name);
    if (name != known.name) continue;
    NcclSystem system{find_cluster(known.preset, 1), known.fitted};
    system.cluster.collectives.clear();
    // PCIe 5.0 x16, and what two of its cards leave their switch with; PCIe 4.0 x16 by way of a host that
    // moves 13.5 GB/s in all (all-to-alls of four and eight cards, 256 MiB and longer).
    if (name == "RTX PRO 6000") set_pcie(system.cluster, 54, 32, 0, 6.2);
    if (name == "L40S") set_pcie(system.cluster, 26, 26, 13.5, 7.1);
    return system;
  }
  throw InvalidInput(str("nccl_gpus.csv: unknown system '", name, "'; use one of ", join(names, ", ")));
}

}  // namespace cp::sim::detail
