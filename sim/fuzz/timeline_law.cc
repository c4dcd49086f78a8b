#include "sim/fuzz/timeline_law.h"

#include <algorithm>
#include <cmath>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {
namespace {

// Rates are shared by divisions, and times are added up in doubles. Each event may add an error of a few
// units in the last place (2^-53); the tolerance is far above what thousands of events can add up to.
constexpr double kTimelineRounding = 1e-6;
// Chosen: with more ranks, three more pairs of replays would take too long.
constexpr int kMostRanksOfSmallNodes = 16;

}  // namespace

Cluster of_small_nodes(Cluster cluster, int nodes, int gpus) {
  cluster.nodes = nodes;
  cluster.node.gpus = cluster.node.nvlink_domain = gpus;
  cluster.node.gpus_per_pcie_switch = cluster.network.gpus_per_nic = 1;
  cluster.node.nvlink_gbps = 0.05, cluster.node.pcie_gbps = 0.04, cluster.node.pcie_root_gbps = 0.04;
  cluster.network.nic_gbps = 0.02, cluster.network.latency_us = 0;
  if (nodes == 4) cluster.network.nodes_per_leaf = 2, cluster.network.oversubscription = 2;
  cluster.transfer.intra_node = cluster.transfer.inter_node = {};
  cluster.transfer.intra_node_latency_us = 0;
  cluster.collectives.clear();
  cluster.gpu.tflops_16 = cluster.gpu.tflops_f32 = 1e-3;
  return cluster;
}

namespace {

void check_on(std::span<const Plan> plans, const Cluster& cluster, const Trial& trial) {
  TimelineOptions options;
  const auto timed = [&](Fidelity fidelity) {
    options.fidelity = fidelity;
    return trial.property("timeline", [&] { return replay(plans, cluster, {}, options); });
  };
  const Timeline folded = timed(Fidelity::folded), simulated = timed(Fidelity::simulated);
  trial.require(
      std::abs(folded.time_ns - simulated.time_ns) <= kTimelineRounding * std::max(1.0, simulated.time_ns),
      "timeline", "folded it takes ", folded.time_ns, " ns, simulated ", simulated.time_ns, ", on ",
      cluster.nodes, " nodes of ", cluster.node.gpus, " GPUs");
  trial.require(std::isfinite(simulated.time_ns) && simulated.time_ns >= 0, "timeline", "it takes ",
                simulated.time_ns, " ns");
  for (const LinkUse& link : simulated.links) {
    trial.require(link.utilisation <= 1 + kTimelineRounding, "timeline", "link ", link.name, " carries ",
                  link.utilisation, " of what it can");
  }
  for (const RankTimeline& rank : simulated.ranks) {
    trial.require(rank.end_ns <= simulated.time_ns * (1 + kTimelineRounding), "timeline", "rank ", rank.rank,
                  " ends at ", rank.end_ns, " ns, after all has ended at ", simulated.time_ns);
    const double accounted = rank.compute_ns + rank.exposed_comm_ns;
    trial.require(accounted <= rank.end_ns * (1 + kTimelineRounding) + kTimelineRounding, "timeline", "rank ",
                  rank.rank, " computes ", rank.compute_ns, " ns and waits ", rank.exposed_comm_ns, " of ",
                  rank.end_ns);
  }
  if (simulated.time_ns > 0) {
    double path = 0;
    for (const PathStep& step : simulated.critical_path) path += step.end_ns - step.begin_ns;
    trial.require(path <= simulated.time_ns * (1 + kTimelineRounding), "timeline", "the critical path takes ",
                  path, " of ", simulated.time_ns, " ns");
  }
}

}  // namespace

void check_timeline(std::span<const Plan> plans, const std::string& cluster_name, const Trial& trial) {
  Rank last = 0;
  for (const Plan& plan : plans) last = std::max(last, plan.self);
  const Cluster one = find_cluster(cluster_name, 1);
  check_on(plans, find_cluster(cluster_name, last / one.node.gpus + 1), trial);
  // What is folded are equal nodes: small cases have several where nodes are small.
  const int ranks = last + 1;
  if (ranks > kMostRanksOfSmallNodes) return;
  for (const int nodes : {2, 3, 4}) {
    if (ranks % nodes == 0) check_on(plans, of_small_nodes(one, nodes, ranks / nodes), trial);
  }
}

}  // namespace cp::sim
