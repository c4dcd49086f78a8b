// A cluster whose every number is round, so that times can be worked out by hand.
#pragma once

#include <vector>

#include "shared/base/types.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "tests/support/ranks.h"

namespace cp::testing {

// Relative: sums of the same numbers in another order.
constexpr double kExact = 1e-9;

// Nodes of two GPUs: 100 GB/s of NVLink, 10 GB/s of NIC a GPU; 1,000 GB/s of memory at full efficiency; 1
// TFLOP/s of attention; no latencies and no launches.
inline sim::Cluster round_cluster(int nodes = 2) {
  sim::Cluster cluster;
  cluster.name = "round";
  cluster.nodes = nodes;
  cluster.gpu.name = "round";
  cluster.gpu.tflops_16 = cluster.gpu.tflops_f32 = 1;
  cluster.gpu.hbm_gbps = 1000;
  cluster.gpu.memory_gib = cluster.gpu.usable_memory_gib = 1;
  cluster.node.gpus = cluster.node.nvlink_domain = 2;
  cluster.node.nvlink_gbps = 100;
  cluster.node.pcie_gbps = cluster.node.pcie_root_gbps = 1000;
  cluster.network.nic_gbps = 10;
  cluster.memory_efficiency = sim::Curve({{1, 1}});
  cluster.matmul_efficiency = sim::Curve({{1, 1}});
  for (const bool backward : {false, true}) {
    for (const bool causal : {false, true})
      cluster.attention.push_back({backward, causal, 64, sim::Curve({{1, 1}})});
  }
  return cluster;
}

}  // namespace cp::testing
