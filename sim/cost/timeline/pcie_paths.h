// The rate that PCIe gives to a collective of GPUs of one node without NVLink. It is that of the narrowest of
// three things: the GPUs' own links, the uplinks of their switches, and the host, which moves the data
// between GPUs that cannot access each other. (sim/cost/network/topology.h has the same links for single
// transfers.)
#pragma once

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {

struct PciePaths {
  // GB/s of every hop of a ring over all members that enters and leaves each switch once.
  double ring_gbps = 0;
  // GB/s of an all-to-all: the buffer of one GPU divided by the time that the busiest link needs.
  double all_to_all_gbps = 0;
};

// `members` is how many GPUs of the group are on the node, at least 2.
PciePaths pcie_paths(const Spread& spread, int members, const Node& node);

}  // namespace cp::sim
