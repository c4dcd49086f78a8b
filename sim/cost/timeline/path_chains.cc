#include "sim/cost/timeline/path_chains.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <variant>

#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/plan/operations.h"
#include "sim/cost/timeline/kernel_cost.h"

namespace cp::sim {
namespace {

Rate rate_of(const Kernel& kernel) {
  if (std::holds_alternative<AttentionForward>(kernel)) return Rate::attention_forward;
  if (std::holds_alternative<AttentionBackward>(kernel)) return Rate::attention_backward;
  return std::holds_alternative<MatMul>(kernel) ? Rate::products : Rate::memory;
}

// The steps of one plan, with the time of each kernel alone.
class Steps {
 public:
  Steps(const Plan& plan, const Cluster& cluster, const SoftwareProfile& software, const KernelCost& kernels)
      : plan_(plan),
        cluster_(cluster),
        software_(software),
        kernels_(kernels),
        steps_(steps_of(plan)),
        alone_(steps_.size(), -1) {}

  // What one step adds to a chain in so long.
  void add(StepId id, double ns, RateTimes& chain) {
    const Work& work = steps_[static_cast<std::size_t>(id)].step->work;
    if (const auto* collective = std::get_if<Collective>(&work)) return add_transfer(*collective, ns, chain);
    const auto& kernel = std::get<Kernel>(work);
    const double alone = std::min(alone_ns(id, kernel), ns);
    add_kernel(kernel, alone, chain);
    chain[slowed_by_transfers(kernel) ? moves() : rate_of(kernel)] += (ns - alone) / kNsPerUs;
  }

  RateTimes kernels_alone() {
    RateTimes chain;
    for (const StepRef& step : steps_) {
      const auto* kernel = std::get_if<Kernel>(&step.step->work);
      if (kernel == nullptr) continue;
      RateTimes once;
      add_kernel(*kernel, alone_ns(step.id, *kernel), once);
      chain.add(once, static_cast<double>(step.count));
    }
    return chain;
  }

 private:
  // Others are slowed by merges beside them alone (merge_stream.h).
  bool slowed_by_transfers(const Kernel& kernel) const {
    if (std::holds_alternative<AttentionForward>(kernel)) return software_.forward_progress < 1;
    return std::holds_alternative<AttentionBackward>(kernel) && software_.backward_progress < 1;
  }

  double alone_ns(StepId id, const Kernel& kernel) {
    double& ns = alone_[static_cast<std::size_t>(id)];
    if (ns < 0) ns = kernels_.ns(kernel, plan_);
    return ns;
  }

  void add_kernel(const Kernel& kernel, double ns, RateTimes& chain) const {
    const double launch = std::min(cluster_.gpu.kernel_launch_us * kNsPerUs, ns);
    chain[Rate::launch] += launch / kNsPerUs;
    chain[rate_of(kernel)] += (ns - launch) / kNsPerUs;
  }

  void add_transfer(const Collective& collective, double ns, RateTimes& chain) const {
    const bool across = crosses_nodes(group_of(collective));
    const double latency_us = across ? cluster_.network.latency_us : cluster_.transfer.intra_node_latency_us;
    const double latency = std::min(latency_us * kNsPerUs, ns);
    chain[Rate::latency] += latency / kNsPerUs;
    chain[across ? Rate::network : Rate::inside] += (ns - latency) / kNsPerUs;
  }

  bool crosses_nodes(GroupId group) const {
    const std::vector<Rank>& ranks = plan_.groups[static_cast<std::size_t>(group)].ranks;
    const auto node = [&](Rank rank) { return rank / cluster_.node.gpus; };
    return std::any_of(ranks.begin(), ranks.end(), [&](Rank rank) { return node(rank) != node(ranks[0]); });
  }

  // Of the transfers that may slow its kernels down.
  Rate moves() const {
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      if (crosses_nodes(static_cast<GroupId>(group))) return Rate::network;
    }
    return Rate::inside;
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const SoftwareProfile& software_;
  const KernelCost& kernels_;
  const std::vector<StepRef> steps_;
  std::vector<double> alone_;  // ns; -1: not known yet
};

}  // namespace

std::vector<RateTimes> path_chains(const Timeline& timeline, std::span<const Plan> plans,
                                   const Cluster& cluster, const SoftwareProfile& software) {
  const KernelCost kernels(cluster, software);
  std::map<Rank, Steps> known;
  const auto steps_of_rank = [&](Rank rank) -> Steps& {
    const auto found = known.find(rank);
    if (found != known.end()) return found->second;
    const auto plan = std::find_if(plans.begin(), plans.end(), [&](const Plan& p) { return p.self == rank; });
    CP_INVARIANT(plan != plans.end(), "a timeline of other plans: they have no rank ", rank);
    return known
        .emplace(std::piecewise_construct, std::forward_as_tuple(rank),
                 std::forward_as_tuple(*plan, cluster, software, kernels))
        .first->second;
  };
  std::vector<RateTimes> chains(1);
  double now_ns = 0;
  for (const PathStep& step : timeline.critical_path) {
    chains[0][Rate::host] += std::max(0.0, step.begin_ns - now_ns) / kNsPerUs;
    steps_of_rank(step.rank).add(step.step, step.end_ns - std::max(step.begin_ns, now_ns), chains[0]);
    now_ns = std::max(now_ns, step.end_ns);
  }
  const auto busiest = std::max_element(
      timeline.ranks.begin(), timeline.ranks.end(),
      [](const RankTimeline& a, const RankTimeline& b) { return a.compute_ns < b.compute_ns; });
  if (busiest != timeline.ranks.end()) chains.push_back(steps_of_rank(busiest->rank).kernels_alone());
  return chains;
}

}  // namespace cp::sim
