// What PCIe gives a collective of GPUs of one node that have no NVLink: the narrowest of the GPUs' own links,
// the uplinks of their switches, and the host, which moves what GPUs that do not see each other exchange
// (sim/cost/network/topology.h has the same links for single transfers).
#pragma once

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {

struct PciePaths {
  // What each link of a ring over all members carries at best, once around, each switch visited once: GB/s.
  double ring_gbps = 0;
  // The buffer of one GPU over the time that an all-to-all's busiest link needs for it: GB/s.
  double all_to_all_gbps = 0;
};

// `members`: of the group on the node, at least 2.
PciePaths pcie_paths(const Spread& spread, int members, const Node& node);

}  // namespace cp::sim
