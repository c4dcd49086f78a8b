// Every number and curve of a Cluster by name, with what it may be: the one list that reading, writing and
// checking walk.
#pragma once

#include <cstddef>
#include <vector>

#include "shared/base/text.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {

enum class Need { required, optional };  // optional: the default of cluster.h means "none" or "no limit"

// Rates, sizes and shares below a millionth of their unit are refused: 1e-6 GB/s is 1 kB/s, less than a
// modem's, and 1e-6 TFLOP/s a pocket calculator's. What is left keeps all times apart from what a double
// cannot hold: the largest work of one kernel, 1e30 bytes or flops, takes at most 1e30 / 1e-6 / 1e-12 = 1e48
// ns at the least rate and the least efficiency (Curve::kLeast).
inline constexpr double kLeastQuantity = 1e-6;

// visit(name, number, range, need); numbers are double, int or bool.
template <class AnyCluster, class Visit>
void for_each_number(AnyCluster& cluster, Visit&& visit) {
  constexpr auto required = Need::required, optional = Need::optional;
  const auto some = [](double high) { return Range{kLeastQuantity, high}; };
  const auto none_or = [](double high) { return Range{kLeastQuantity, high, true}; };
  const auto from_0 = [](double high) { return Range{0, high}; };
  const Range flag{0, 1}, gpus{1, 1024};

  auto& gpu = cluster.gpu;
  visit("gpu.tflops_16", gpu.tflops_16, some(1e6), required);
  visit("gpu.tflops_f32", gpu.tflops_f32, some(1e5), required);
  visit("gpu.tflops_fp8", gpu.tflops_fp8, none_or(1e6), optional);
  visit("gpu.hbm_gbps", gpu.hbm_gbps, some(1e6), required);
  visit("gpu.memory_gib", gpu.memory_gib, some(1e5), required);
  visit("gpu.usable_memory_gib", gpu.usable_memory_gib, some(1e5), required);
  visit("gpu.power_limit_w", gpu.power_limit_w, some(1e5), required);
  visit("gpu.sustained_clock", gpu.sustained_clock, some(1), required);
  visit("gpu.kernel_launch_us", gpu.kernel_launch_us, from_0(1e4), required);

  auto& node = cluster.node;
  visit("node.gpus", node.gpus, gpus, required);
  visit("node.nvlink_domain", node.nvlink_domain, Range{1, 1 << 20}, required);
  visit("node.nvlink_gbps", node.nvlink_gbps, none_or(1e5), required);
  visit("node.nvlink_links", node.nvlink_links, from_0(1e4), optional);
  visit("node.nvlink_switches", node.nvlink_switches, from_0(1e4), optional);
  visit("node.nvls", node.nvls, flag, optional);
  visit("node.pcie_gbps", node.pcie_gbps, some(1e5), required);
  visit("node.gpus_per_pcie_switch", node.gpus_per_pcie_switch, gpus, required);
  visit("node.pcie_root_gbps", node.pcie_root_gbps, some(1e5), required);
  visit("node.pcie_peers", node.pcie_peers, flag, optional);
  visit("node.pcie_host_gbps", node.pcie_host_gbps, none_or(1e5), optional);
  visit("node.host_link_gbps", node.host_link_gbps, none_or(1e5), optional);
  visit("node.host_memory_gbps", node.host_memory_gbps, none_or(1e5), optional);

  auto& network = cluster.network;
  visit("network.nic_gbps", network.nic_gbps, some(1e5), required);
  visit("network.gpus_per_nic", network.gpus_per_nic, gpus, required);
  visit("network.rails", network.rails, flag, optional);
  visit("network.nodes_per_leaf", network.nodes_per_leaf, Range{1, 1 << 30}, optional);
  visit("network.oversubscription", network.oversubscription, Range{1, 1e3}, optional);
  visit("network.latency_us", network.latency_us, from_0(1e5), required);
  visit("network.sharp", network.sharp, flag, optional);

  visit("transfer.intra_node_latency_us", cluster.transfer.intra_node_latency_us, from_0(1e5), required);
  visit("transfer.beside_kernels", cluster.transfer.beside_kernels, some(1), optional);
}

// visit(name, curve); some may be empty.
template <class AnyCluster, class Visit>
void for_each_curve(AnyCluster& cluster, Visit&& visit) {
  visit("transfer.intra_node", cluster.transfer.intra_node);
  visit("transfer.inter_node", cluster.transfer.inter_node);
  visit("matmul_efficiency", cluster.matmul_efficiency);
  visit("fp8_efficiency", cluster.fp8_efficiency);
  visit("memory_efficiency", cluster.memory_efficiency);
  for (std::size_t i = 0; i < cluster.collectives.size(); ++i) {
    visit(str("collectives[", i, "].time_us"), cluster.collectives[i].time_us);
  }
  for (std::size_t i = 0; i < cluster.attention.size(); ++i) {
    visit(str("attention[", i, "].tflops"), cluster.attention[i].tflops);
  }
}

// What validate_cluster throws.
std::vector<FieldError> cluster_errors(const Cluster& cluster);

}  // namespace cp::sim
