#include "sim/cost/timeline/port_loads.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/base/stop.h"
#include "sim/cost/cluster/transfer_rate.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/pair_rate.h"
#include "sim/cost/timeline/view_bytes.h"

namespace cp::sim {
PortLoads::PortLoads(const Plan& plan, const Cluster& cluster, const CollectiveSettings& settings)
    : plan_(plan),
      cluster_(cluster),
      settings_(settings),
      nvlink_(cluster.node.nvlink_domain > 1 && cluster.node.nvlink_gbps > 0),
      inside_gbps_(nvlink_ ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps),
      known_(plan.groups.size()) {
  worlds_.reserve(plan.groups.size());
  for (const Group& group : plan.groups) worlds_.push_back(world_of(group));
}

PortLoads::World PortLoads::world_of(const Group& group) const {
  World world;
  world.spread.gpus = static_cast<int>(group.ranks.size());
  world.spread.fewest_on_a_node = std::numeric_limits<int>::max();
  world.one_domain = true;
  // Neighbours in the group are mostly neighbours in the cluster.
  bool ascending = true;
  int node = -1, on_node = 0;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    const Rank rank = group.ranks[i];
    if (rank >= cluster_.num_gpus()) {
      throw InvalidInput(str("rank ", rank, " of group ", group.name, " has no GPU on ", cluster_.name,
                             ", which has ", cluster_.num_gpus(), "; use --nodes ",
                             rank / cluster_.node.gpus + 1));
    }
    if (rank == plan_.self) world.self = static_cast<std::int32_t>(i);
    const int here = cluster_.node_of(rank);
    ascending = ascending && here >= node;
    if (here != node) {
      if (node >= 0) world.spread.fewest_on_a_node = std::min(world.spread.fewest_on_a_node, on_node);
      ++world.spread.nodes;
      node = here, on_node = 0;
    }
    ++on_node;
    world.one_domain = world.one_domain && (here == cluster_.node_of(group.ranks[0]) ||
                                            domain_of(rank) == domain_of(group.ranks[0]));
  }
  world.spread.fewest_on_a_node = std::min(world.spread.fewest_on_a_node, on_node);
  const bool all_by_nvlink = nvlink_ && cluster_.node.nvlink_domain == cluster_.node.gpus;
  if (!ascending || !all_by_nvlink) world.spread = spread_of(group.ranks, cluster_);
  return world;
}

PortLoad PortLoads::of(const Collective& collective) {
  const std::size_t group = idx(group_of(collective));
  if (const auto* op = std::get_if<Exchange>(&collective)) return exchange(*op, group);
  return together(collective, worlds_[group]);
}

// ---- as collective_flows() has them ----

PortLoad PortLoads::together(const Collective& collective, const World& world) const {
  PortLoad load;
  load.transfers_at_once = true;
  const double alone_ns = collective_ns(collective, plan_, world.spread, cluster_, settings_);
  if (world.spread.gpus < 2 || alone_ns == 0) return load;
  const double n = world.spread.gpus;
  std::visit(
      [&](const auto& op) {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, AllGather>) {
          ring(bytes_of(op.out, plan_) * (n - 1) / n, alone_ns, world, load);
        } else if constexpr (std::is_same_v<T, ReduceScatter>) {
          ring(bytes_of(op.in, plan_) * (n - 1) / n, alone_ns, world, load);
        } else if constexpr (std::is_same_v<T, AllReduce>) {
          ring(2 * bytes_of(op.in, plan_) * (n - 1) / n, alone_ns, world, load);
        } else if constexpr (std::is_same_v<T, Broadcast>) {
          ring(bytes_of(op.out, plan_), alone_ns, world, load);
        } else if constexpr (std::is_same_v<T, AllToAll>) {
          all_to_all(bytes_of(op.in, plan_), alone_ns, world, load);
        }
      },
      collective);
  load.sent_inside = load.inside.bytes, load.sent_network = load.network.bytes;
  return load;
}

// `bytes`: what each link of one ring carries, over all rings.
void PortLoads::ring(double bytes, double alone_ns, const World& world, PortLoad& load) const {
  const Spread& spread = world.spread;
  const bool alone = world.one_domain;
  const double rings = alone ? 1 : spread.fewest_on_a_node;
  const bool more_members = spread.gpus > spread.fewest_on_a_node * spread.nodes;
  const auto add = [&](PortFlow& flow, double flows, double link) {
    const double each = std::min(bytes / rings, link * alone_ns);
    flow.bytes = flows * each, flow.gbps = flow.bytes / alone_ns, flow.flows = flows;
  };
  // A ring enters a node at one member, and comes through the others.
  const double hops = alone ? 1 : more_members ? rings : rings - 1;
  if (hops > 0) add(load.inside, hops, inside_gbps_);
  if (alone) return;
  add(load.network, 1, network_gbps());
  load.network.load = std::min(cluster_.network.gpus_per_nic, cluster_.node.gpus);
}

// `bytes`: the whole buffer of one GPU.
void PortLoads::all_to_all(double bytes, double alone_ns, const World& world, PortLoad& load) const {
  const double n = world.spread.gpus, near = (world.one_domain ? n : world.spread.fewest_on_a_node) - 1;
  const auto add = [&](PortFlow& flow, double peers) {
    flow.bytes = bytes / n * peers, flow.gbps = flow.bytes / alone_ns, flow.flows = peers;
  };
  if (near > 0) add(load.inside, near);
  if (near < n - 1) add(load.network, n - 1 - near);
  load.network.load = std::min(cluster_.network.gpus_per_nic, cluster_.node.gpus);
}

// ---- exchanges ----

PortLoad PortLoads::exchange(const Exchange& exchange, std::size_t group) {
  const std::vector<Offset> offsets = offsets_of(exchange, group);
  if (offsets.empty()) return {};
  Known& known = known_[group];
  if (known.offsets != offsets) known = {offsets, shifted(offsets, group)};
  return known.load;
}

std::vector<PortLoads::Offset> PortLoads::offsets_of(const Exchange& exchange, std::size_t group) const {
  const auto n = static_cast<std::int32_t>(plan_.groups[group].ranks.size());
  const std::int32_t self = worlds_[group].self;
  std::vector<Offset> offsets;
  const auto at = [&](std::int32_t places) -> Offset& {
    places = (places + n) % n;
    // Plans list peers in order: the last one is the likely one.
    for (std::size_t i = offsets.size(); i-- > 0;) {
      if (offsets[i].places == places) return offsets[i];
    }
    return offsets.emplace_back(Offset{places, 0, 0});
  };
  for (const Transfer& send : exchange.sends) at(send.peer - self).sent += bytes_of(send.view, plan_);
  for (const Transfer& recv : exchange.recvs) at(self - recv.peer).received += bytes_of(recv.view, plan_);
  return offsets;
}

// What goes through each member's links.
struct PortLoads::Members {
  struct Member {
    int domain = 0, node = 0;
    std::size_t nic = 0, pcie_switch = 0, host = 0;
    // By direction, out and in:
    std::array<double, 2> near{}, far{};              // bytes by its ports
    std::array<double, 2> near_flows{}, far_flows{};  // their numbers
    std::array<double, 2> pcie{};                     // bytes by its link into PCIe
    double near_ns = 0, far_ns = 0;                   // of the slowest flow that has its links for itself
  };
  std::vector<Member> members;
  struct Shared {
    std::int64_t id = 0;
    double members = 0;  // of the group
    std::array<double, 2> bytes{};
  };
  std::vector<Shared> nics, switches, hosts;

  static std::size_t number_of(std::vector<Shared>& all, std::int64_t id) {
    std::size_t i = all.size();
    while (i > 0 && all[i - 1].id != id) --i;
    if (i == 0) all.push_back({id, 0, {}}), i = all.size();
    ++all[i - 1].members;
    return i - 1;
  }
};

// The slowest member's links, when all send as far as this one does: those of its transfers that run inside
// and those between nodes, each as one flow.
PortLoad PortLoads::shifted(const std::vector<Offset>& offsets, std::size_t group) const {
  const std::vector<Rank>& ranks = plan_.groups[group].ranks;
  const Node& node = cluster_.node;
  const Network& network = cluster_.network;
  const TransferCurves& curves = cluster_.transfer;
  const std::size_t n = ranks.size();
  // PCIe on the way to the NIC counts only where it can be the narrowest part: where it also carries what
  // NVLink does not, or is slower than the NIC itself. Else the NIC's rate says all.
  const bool pcie_to_nic =
      node.pcie_gbps > 0 && (!nvlink_ || node.nvlink_domain < node.gpus || node.pcie_gbps < network.nic_gbps);
  const bool switch_to_nic = pcie_to_nic && network.gpus_per_nic > node.gpus_per_pcie_switch;
  // What several members share (a NIC, a PCIe switch, a host's root) is numbered, so that their bytes meet
  // there.
  Members all;
  for (const Rank rank : ranks) {
    const std::int64_t host = cluster_.node_of(rank), in_node = rank % node.gpus;
    Members::Member& member = all.members.emplace_back();
    member.domain = domain_of(rank), member.node = static_cast<int>(host);
    member.nic = Members::number_of(all.nics, host * node.gpus + in_node / network.gpus_per_nic);
    member.pcie_switch =
        Members::number_of(all.switches, host * node.gpus + in_node / node.gpus_per_pcie_switch);
    member.host = Members::number_of(all.hosts, host);
  }

  // First pass: put the bytes of each transfer on everything that it goes through, at both of its ends. All
  // members send as far as this one does, so member i sends to the one `places` further on.
  PortLoad load;
  for (const Offset& offset : offsets) {
    look_at_stop();
    const double bytes = offset.bytes();
    const double near_gbps = curves.intra_node.empty()
                                 ? std::numeric_limits<double>::infinity()
                                 : transfer_gbps(curves.intra_node, curves.intra_node_latency_us, bytes);
    const double far_gbps =
        curves.inter_node.empty()
            ? network.nic_gbps
            : std::min(network.nic_gbps, transfer_gbps(curves.inter_node, network.latency_us, bytes));
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t j = (i + idx(offset.places)) % n;
      const std::array<Members::Member*, 2> ends = {&all.members[i], &all.members[j]};
      const bool by_nvlink = ends[0]->domain == ends[1]->domain;
      const bool near = by_nvlink || ends[0]->node == ends[1]->node;
      const double link = by_nvlink ? node.nvlink_gbps : node.pcie_gbps;
      const double ns = bytes / (near ? std::min(near_gbps, link) : far_gbps);
      const bool pcie = !by_nvlink && (near || pcie_to_nic);
      // Without peer access a transfer goes up to the host even between neighbours on one switch.
      const bool apart = ends[0]->pcie_switch != ends[1]->pcie_switch || !node.pcie_peers;
      const bool switches = pcie && (near ? apart : switch_to_nic);
      if (switches && near) all.hosts[ends[0]->host].bytes[0] += bytes;
      for (std::size_t way = 0; way < 2; ++way) {
        Members::Member& end = *ends[way];
        (near ? end.near : end.far)[way] += bytes;
        (near ? end.near_flows : end.far_flows)[way] += 1;
        double& slowest = near ? end.near_ns : end.far_ns;
        slowest = std::max(slowest, ns);
        if (pcie) end.pcie[way] += bytes;
        if (switches) all.switches[end.pcie_switch].bytes[way] += bytes;
        if (!near) all.nics[end.nic].bytes[way] += bytes;
      }
      if (i == idx(worlds_[group].self)) (near ? load.sent_inside : load.sent_network) += offset.sent;
    }
  }

  const double near_latency_ns = curves.intra_node.empty() ? curves.intra_node_latency_us * kNsPerUs : 0;
  const double far_latency_ns = curves.inter_node.empty() ? network.latency_us * kNsPerUs : 0;
  // GPUs behind one link that are in other groups do the same thing.
  const auto shared_ns = [](const Members::Shared& link, int behind, double gbps) {
    const double others = std::max(1.0, behind / link.members);
    return std::max(link.bytes[0], link.bytes[1]) * others / gbps;
  };
  // Second pass: how long each member's ports need, in the direction that has more. The collective lasts as
  // long as its slowest member, so only that one's load is returned. Where something behind the port is the
  // narrow part, the load is more than 1 for each byte: the port looks busy for the time that the narrow part
  // needs.
  double slowest_ns = -1;
  const double together = together_gbps(cluster_);
  for (Members::Member& member : all.members) {
    const double near = std::max(member.near[0], member.near[1]),
                 far = std::max(member.far[0], member.far[1]);
    double near_ns = near / inside_gbps_, far_ns = 0;
    if (std::max(member.near_flows[0], member.near_flows[1]) > 1)
      member.near_ns = std::max(member.near_ns, near / together);
    if (far > 0)
      far_ns = shared_ns(all.nics[member.nic], std::min(network.gpus_per_nic, node.gpus), network.nic_gbps);
    const double pcie = std::max(member.pcie[0], member.pcie[1]);
    if (pcie > 0) {
      double pcie_ns = pcie / node.pcie_gbps;
      if (node.pcie_root_gbps > 0) {
        pcie_ns =
            std::max(pcie_ns, shared_ns(all.switches[member.pcie_switch],
                                        std::min(node.gpus_per_pcie_switch, node.gpus), node.pcie_root_gbps));
        if (node.pcie_host_gbps > 0)
          pcie_ns = std::max(pcie_ns, shared_ns(all.hosts[member.host], node.gpus, node.pcie_host_gbps));
      }
      if (near > 0 && !nvlink_) near_ns = std::max(near_ns, pcie_ns);
      if (far > 0 && pcie_to_nic) far_ns = std::max(far_ns, pcie_ns);
    }
    const double ns = std::max(near > 0 ? near_latency_ns + std::max(near_ns, member.near_ns) : 0,
                               far > 0 ? far_latency_ns + std::max(far_ns, member.far_ns) : 0);
    if (ns <= slowest_ns) continue;
    slowest_ns = ns;
    load.inside = load.network = {};
    if (near > 0) {
      load.inside = {near_latency_ns, near, near / member.near_ns,
                     std::max(member.near_flows[0], member.near_flows[1]), near_ns * inside_gbps_ / near};
    }
    if (far > 0) {
      load.network = {far_latency_ns, far, far / member.far_ns,
                      std::max(member.far_flows[0], member.far_flows[1]), far_ns * network.nic_gbps / far};
    }
  }
  return load;
}

}  // namespace cp::sim
