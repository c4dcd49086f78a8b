#include "sim/cost/cluster/used_part.h"

#include <algorithm>
#include <cstdint>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Cluster used_part(Cluster cluster, int gpus) {
  const std::int64_t of_node = cluster.node.gpus;
  // Without rails the nodes of a single leaf do not see it.
  const bool leaves = cluster.network.rails || cluster.nodes > cluster.network.nodes_per_leaf;
  const std::int64_t of_leaf = leaves ? std::max(1, cluster.network.nodes_per_leaf) : 1;
  const std::int64_t of_ranks = ceil_div(std::max(gpus, 1), of_node);
  const std::int64_t of_domain = ceil_div(std::max(cluster.node.nvlink_domain, 1), of_node);
  const std::int64_t nodes = std::max(ceil_div(of_ranks, of_domain) * of_domain, of_domain) + 1;
  cluster.nodes = static_cast<int>(std::min<std::int64_t>(cluster.nodes, ceil_div(nodes, of_leaf) * of_leaf));
  return cluster;
}

Cluster part_of_node(Cluster cluster, int gpus) {
  Node& node = cluster.node;
  if (gpus < 1 || node.gpus % gpus != 0) {
    throw InvalidInput(str(gpus, " GPUs neither divide the ", node.gpus, " GPUs of a node of ", cluster.name,
                           " nor are a multiple of them; use ", node.gpus));
  }
  cluster.nodes = 1;
  if (node.nvlink_domain <= node.gpus) node.nvlink_domain = std::min(node.nvlink_domain, gpus);
  node.gpus_per_pcie_switch = std::min(node.gpus_per_pcie_switch, gpus);
  cluster.network.gpus_per_nic = std::min(cluster.network.gpus_per_nic, gpus);
  node.gpus = gpus;
  validate_cluster(cluster);
  return cluster;
}

}  // namespace cp::sim
