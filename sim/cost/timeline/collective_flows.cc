#include "sim/cost/timeline/collective_flows.h"

#include <algorithm>
#include <map>
#include <type_traits>

#include "shared/base/error.h"
#include "sim/cost/timeline/view_bytes.h"

namespace cp::sim {
namespace {

// What each link of one ring carries, over all rings.
double ring_bytes(const Collective& collective, const Plan& plan, double n) {
  return std::visit(
      [&](const auto& op) -> double {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, AllGather>) {
          return bytes_of(op.out, plan) * (n - 1) / n;
        } else if constexpr (std::is_same_v<T, ReduceScatter>) {
          return bytes_of(op.in, plan) * (n - 1) / n;
        } else if constexpr (std::is_same_v<T, AllReduce>) {
          return 2 * bytes_of(op.in, plan) * (n - 1) / n;
        } else if constexpr (std::is_same_v<T, Broadcast>) {
          return bytes_of(op.out, plan);
        } else {
          CP_INVARIANT(false, "no ring");
          return 0;
        }
      },
      collective);
}

class Rings {
 public:
  Rings(const std::vector<Rank>& ranks, const Cluster& cluster, double bytes, double alone_ns)
      : cluster_(cluster), bytes_(bytes), alone_ns_(alone_ns) {
    for (const Rank rank : ranks) members_[cluster.node_of(rank)].push_back(rank);
    // Not in the order of the group: blocks that are alike by their sets of ranks (fold.h) have the same
    // rings.
    for (auto& [node, members] : members_) std::sort(members.begin(), members.end());
    rings_ = ranks.size();
    for (const auto& [node, members] : members_) rings_ = std::min(rings_, members.size());
    if (members_.size() == 1) rings_ = 1;
  }

  std::vector<CollectiveFlow> flows() {
    for (std::size_t ring = 0; ring < rings_; ++ring) add_ring(ring);
    return std::move(flows_);
  }

 private:
  // Reductions in the switch, and what else the library does better than a ring, send less: never more than
  // the links can carry in that time.
  void add(Rank source, Rank target, bool across) {
    const double link = across                          ? cluster_.network.nic_gbps
                        : cluster_.node.nvlink_gbps > 0 ? cluster_.node.nvlink_gbps
                                                        : cluster_.node.pcie_gbps;
    flows_.push_back({source, target, std::min(bytes_ / static_cast<double>(rings_), link * alone_ns_)});
  }

  void add_ring(std::size_t ring) {
    const std::vector<Rank>* before = &members_.rbegin()->second;
    for (const auto& [node, members] : members_) {
      const std::size_t n = members.size();
      if (members_.size() > 1) add((*before)[ring], members[ring], true);
      // One node: the ring closes inside.
      const std::size_t hops = members_.size() > 1 ? n - 1 : n;
      for (std::size_t hop = 0; hop < hops; ++hop) {
        add(members[(ring + hop) % n], members[(ring + hop + 1) % n], false);
      }
      before = &members;
    }
  }

  const Cluster& cluster_;
  const double bytes_, alone_ns_;
  std::map<int, std::vector<Rank>> members_;  // by node
  std::size_t rings_ = 1;
  std::vector<CollectiveFlow> flows_;
};

}  // namespace

std::vector<CollectiveFlow> collective_flows(const Collective& collective, const Plan& plan,
                                             const Cluster& cluster, double alone_ns) {
  const std::vector<Rank>& ranks = plan.groups[static_cast<std::size_t>(group_of(collective))].ranks;
  const auto n = static_cast<double>(ranks.size());
  if (ranks.size() < 2 || alone_ns == 0) return {};
  const auto* all_to_all = std::get_if<AllToAll>(&collective);
  if (all_to_all == nullptr) return Rings(ranks, cluster, ring_bytes(collective, plan, n), alone_ns).flows();
  std::vector<CollectiveFlow> flows;
  for (const Rank source : ranks) {
    for (const Rank target : ranks) {
      if (source != target) flows.push_back({source, target, bytes_of(all_to_all->in, plan) / n});
    }
  }
  return flows;
}

}  // namespace cp::sim
