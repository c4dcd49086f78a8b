#include "sim/cost/timeline/pcie_paths.h"

#include <algorithm>

namespace cp::sim {

PciePaths pcie_paths(const Spread& spread, int members, const Node& node) {
  const int packed = (members + node.gpus_per_pcie_switch - 1) / node.gpus_per_pcie_switch;
  const int switches = spread.switches > 0 ? spread.switches : packed;
  const int most =
      spread.most_on_a_switch > 0 ? spread.most_on_a_switch : std::min(members, node.gpus_per_pcie_switch);
  const double n = members, on_one = most, through_host = node.pcie_peers ? switches : n;

  // Times of a byte, in ns. A ring leaves each switch once, and each GPU does where peers do not see each
  // other.
  double ring = 1 / node.pcie_gbps, pairs = (n - 1) / n / node.pcie_gbps;
  if (node.pcie_root_gbps > 0 && (switches > 1 || !node.pcie_peers)) {
    ring = std::max(ring, (node.pcie_peers ? 1 : on_one) / node.pcie_root_gbps);
    pairs = std::max(pairs, on_one * (node.pcie_peers ? n - on_one : n - 1) / n / node.pcie_root_gbps);
    if (node.pcie_host_gbps > 0) {
      ring = std::max(ring, through_host / node.pcie_host_gbps);
      pairs = std::max(pairs, (node.pcie_peers ? n - n / switches : n - 1) / node.pcie_host_gbps);
    }
  }
  return {1 / ring, 1 / pairs};
}

}  // namespace cp::sim
