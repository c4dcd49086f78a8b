#include "sim/cost/timeline/redistribute_times.h"

#include <algorithm>
#include <span>
#include <vector>

#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/cost/cluster/transfer_rate.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {
namespace {

// The size, for each rank, at which the efficiencies of collectives, transfers and memory are read off the
// cluster's curves. Chosen: a layer's activations or weights are of that order. The closed form has one
// efficiency for all sizes; small tensors look faster in it than they are. The replay has no such error.
constexpr double kTypicalBytes = 64 << 20;

double replay_us(const Cluster& cluster, const std::vector<Plan>& plans) {
  return replay(plans, cluster, SoftwareProfile{}).time_ns / 1e3;
}

// Of the link's rate, in collectives of a whole node, or of two GPUs where a node has one.
double efficiency(CollectiveKind kind, const Cluster& cluster, double link_gbps) {
  const int n = std::max(2, std::min(8, cluster.node.gpus));
  const int nodes = cluster.node.gpus > 1 ? 1 : 2;
  const double bytes = kTypicalBytes * n;
  const double received = (kind == CollectiveKind::all_reduce ? 2.0 : 1.0) * (n - 1) / n * bytes;
  Cluster large = cluster;
  large.nodes = std::max(cluster.nodes, nodes);
  const double ns = collective_ns(kind, bytes, Spread{n, nodes, n / nodes}, large);
  return std::min(1.0, received / link_gbps / ns);
}

}  // namespace

CostModel cost_model_of(const Cluster& cluster) {
  const bool nvlink = cluster.node.nvlink_gbps > 0;
  const bool across = cluster.nodes > 1 && cluster.node.nvlink_domain < cluster.num_gpus();
  CostModel model;
  model.node_gbps = nvlink ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
  model.network_gbps = cluster.network.nic_gbps / cluster.network.gpus_per_nic;
  model.ranks_per_node = nvlink ? std::max(cluster.node.gpus, cluster.node.nvlink_domain) : cluster.node.gpus;
  model.step_latency_us = across ? cluster.network.latency_us : cluster.transfer.intra_node_latency_us;
  model.peer_latency_us = 0.1 * model.step_latency_us;
  model.local_latency_us = cluster.gpu.kernel_launch_us;
  const Curve& memory = cluster.memory_efficiency;
  model.memory_gbps = cluster.gpu.hbm_gbps * (memory.empty() ? 1 : memory.at(2 * kTypicalBytes));
  const double link = cluster.node.gpus > 1 ? model.node_gbps : model.network_gbps;
  model.all_gather_efficiency = efficiency(CollectiveKind::all_gather, cluster, link);
  model.reduce_scatter_efficiency = efficiency(CollectiveKind::reduce_scatter, cluster, link);
  model.all_reduce_efficiency = efficiency(CollectiveKind::all_reduce, cluster, link);
  model.all_to_all_efficiency = efficiency(CollectiveKind::all_to_all, cluster, link);
  const Curve& pairs = cluster.node.gpus > 1 ? cluster.transfer.intra_node : cluster.transfer.inter_node;
  model.exchange_efficiency =
      pairs.empty() ? 1 : std::min(1.0, transfer_gbps(pairs, model.step_latency_us, kTypicalBytes) / link);
  return model;
}

bool is_replayed(const Redistribution& redistribution) {
  return std::max(redistribution.source.mesh.size(), redistribution.target.mesh.size()) <= kMostReplayedRanks;
}

void replay_times(const Cluster& cluster, const Target& target, Redistribution& redistribution) {
  if (!is_replayed(redistribution)) return;
  const double before_us = redistribution.time_us;
  redistribution.time_us = replay_us(cluster, lower_all(redistribution, target));
  if (redistribution.objective == Objective::time && before_us > 0)
    redistribution.least_possible *= redistribution.time_us / before_us;
  RedistributeOptions options;
  options.partial_rule = redistribution.partial_rule;
  for (RedistributionStep& step : redistribution.steps) {
    const Redistribution alone =
        follow_moves(step.move.from, step.move.to, std::span(&step.move, 1), options);
    step.time_us = replay_us(cluster, lower_all(alone, target));
  }
}

double replayed_scale_us(const Cluster& cluster, const Target& target, const Redistribution& redistribution,
                         double scale) {
  if (scale == 1) return 0;
  if (!is_replayed(redistribution)) return scale_time_us(redistribution, scale, cost_model_of(cluster));
  return std::max(0.0, replay_us(cluster, lower_all_scaled(redistribution, scale, target)) -
                           replay_us(cluster, lower_all(redistribution, target)));
}

}  // namespace cp::sim
