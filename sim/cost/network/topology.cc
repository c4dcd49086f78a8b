#include "sim/cost/network/topology.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"
#include "shared/base/units.h"

namespace cp::sim {
namespace {

// The same on every machine, unlike std::uniform_real_distribution: in [0, 1).
double draw(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (index + 1);  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

Topology::Topology(const Cluster& cluster, const LinkFactors& factors, RouteOptions options)
    : kinds_{{{"gpu", "nvlink out", "nvlink in"},
              {"gpu", "pcie up", "pcie down"},
              {"pcie switch", "up", "down"},
              {"host", "in", "out"},
              {"nic", "tx", "rx"},
              {"leaf", "up", "down"}}},
      gpus_per_nic_(cluster.network.gpus_per_nic),
      gpus_per_node_(cluster.node.gpus),
      nics_per_node_(ceil_div(cluster.node.gpus, cluster.network.gpus_per_nic)),
      nvlink_(cluster.node.nvlink_domain > 1 && cluster.node.nvlink_gbps > 0),
      pcie_peers_(cluster.node.pcie_peers),
      nic_beyond_switch_(cluster.network.gpus_per_nic > cluster.node.gpus_per_pcie_switch),
      cross_rails_by_nvlink_(options.cross_rails_by_nvlink && cluster.network.rails && nvlink_),
      inside_ns_(cluster.transfer.intra_node_latency_us * kNsPerUs),
      between_ns_(cluster.network.latency_us * kNsPerUs) {
  const Node& node = cluster.node;
  pcie_to_nic_ = node.pcie_gbps > 0 &&
                 (!nvlink_ || node.nvlink_domain < node.gpus || node.pcie_gbps < cluster.network.nic_gbps);
  check_joined(cluster);
  place_gpus(cluster);
  add_links(cluster);
  apply(factors);
}

void Topology::check_joined(const Cluster& cluster) const {
  const Node& node = cluster.node;
  const int joined = nvlink_ ? node.nvlink_domain : 1;
  if (joined < node.gpus && node.pcie_gbps <= 0) {
    throw InvalidInput(str("node.pcie_gbps is ", node.pcie_gbps, ", but nothing else joins the ", node.gpus,
                           " GPUs of a node; give it, or an nvlink_gbps with nvlink_domain ", node.gpus));
  }
  if (cluster.num_gpus() > std::max(joined, node.gpus) && cluster.network.nic_gbps <= 0) {
    throw InvalidInput(str("network.nic_gbps is ", cluster.network.nic_gbps, ", but nothing else joins the ",
                           cluster.nodes, " nodes; give it, or use nodes 1"));
  }
}

void Topology::place_gpus(const Cluster& cluster) {
  const Node& node = cluster.node;
  const Network& network = cluster.network;
  const int switches = ceil_div(node.gpus, node.gpus_per_pcie_switch);
  for (int gpu = 0; gpu < cluster.num_gpus(); ++gpu) {
    const int in_node = gpu % node.gpus, host = gpu / node.gpus;
    const int nic = in_node / network.gpus_per_nic, group = host / network.nodes_per_leaf;
    places_.push_back({.domain = nvlink_ ? gpu / node.nvlink_domain : gpu,
                       .node = host,
                       .pcie_switch = host * switches + in_node / node.gpus_per_pcie_switch,
                       .nic = host * nics_per_node_ + nic,
                       .leaf = network.rails ? group * nics_per_node_ + nic : group});
  }
}

void Topology::add_links(const Cluster& cluster) {
  const Node& node = cluster.node;
  const Network& network = cluster.network;
  const auto add = [&](KindId id, int count, const auto& capacity_of) {
    Kind& kind = kinds_[id];
    kind.count = count;
    kind.first = static_cast<LinkId>(capacities_.size());
    for (int direction = 0; direction < 2; ++direction) {
      for (int i = 0; i < count; ++i) capacities_.push_back(capacity_of(i));
    }
  };
  const Place& last = places_.back();
  leaf_groups_ = last.node / network.nodes_per_leaf + 1;
  const bool pcie = pcie_to_nic_ || !nvlink_ || node.nvlink_domain < node.gpus;
  add(kNvlink, nvlink_ ? num_gpus() : 0, [&](int) { return node.nvlink_gbps; });
  add(kPcie, pcie ? num_gpus() : 0, [&](int) { return node.pcie_gbps; });
  add(kSwitch, pcie && node.pcie_root_gbps > 0 ? last.pcie_switch + 1 : 0,
      [&](int) { return node.pcie_root_gbps; });
  add(kHost, kinds_[kSwitch].count > 0 && node.pcie_host_gbps > 0 ? last.node + 1 : 0,
      [&](int) { return node.pcie_host_gbps; });
  add(kNic, network.nic_gbps > 0 ? last.nic + 1 : 0, [&](int) { return network.nic_gbps; });
  std::vector<int> nics(static_cast<std::size_t>(last.leaf) + 1, 0);
  for (int gpu = 0; gpu < num_gpus(); ++gpu) {
    const Place& place = places_[static_cast<std::size_t>(gpu)];
    const bool first_of_nic = gpu % node.gpus % network.gpus_per_nic == 0;
    nics[static_cast<std::size_t>(place.leaf)] += first_of_nic ? 1 : 0;
  }
  const int leaves = kinds_[kNic].count > 0 && last.leaf > 0 ? last.leaf + 1 : 0;
  add(kLeaf, leaves, [&](int leaf) {
    return nics[static_cast<std::size_t>(leaf)] * network.nic_gbps / network.oversubscription;
  });
}

void Topology::apply(const LinkFactors& factors) {
  const auto check = [](const std::string& what, double factor) {
    if (std::isfinite(factor) && factor > 0) return;
    throw InvalidInput(str("the factor of ", what, ", ", factor, ", must be finite and above 0"));
  };
  if (!(factors.spread >= 0 && factors.spread < 1)) {
    throw InvalidInput(str("a spread of ", factors.spread, " must be in [0, 1)"));
  }
  for (std::size_t link = 0; factors.spread > 0 && link < capacities_.size(); ++link) {
    capacities_[link] *= 1 + factors.spread * (2 * draw(factors.seed, link) - 1);
  }
  for (const auto& [link, factor] : factors.links) {
    check(link, factor);
    capacities_[static_cast<std::size_t>(find(link))] *= factor;
  }
  for (const auto& [gpu, factor] : factors.gpus) {
    check(str("gpu ", gpu), factor);
    if (gpu < 0 || gpu >= num_gpus()) {
      throw InvalidInput(str("there is no gpu ", gpu, " to slow down; the last one is ", num_gpus() - 1));
    }
    const int nic = places_[static_cast<std::size_t>(gpu)].nic;
    for (const KindId id : {kNvlink, kPcie, kNic}) {
      const Kind& kind = kinds_[id];
      if (kind.count == 0 || (id == kNic && gpus_per_nic_ > 1)) continue;
      const int index = id == kNic ? nic : gpu;
      capacities_[static_cast<std::size_t>(kind.out_of(index))] *= factor;
      capacities_[static_cast<std::size_t>(kind.into(index))] *= factor;
    }
  }
}

bool Topology::inside(int source, int target) const {
  const Place& from = places_[static_cast<std::size_t>(source)];
  const Place& to = places_[static_cast<std::size_t>(target)];
  return from.domain == to.domain || from.node == to.node;
}

// The GPU of the source's node that is first on the target's rail.
int Topology::proxy(int source, int target) const {
  const int rail = places_[static_cast<std::size_t>(target)].nic % nics_per_node_;
  const int own = places_[static_cast<std::size_t>(source)].nic % nics_per_node_;
  if (!cross_rails_by_nvlink_ || rail == own) return source;
  const int other = source - source % gpus_per_node_ + rail * gpus_per_nic_;
  const bool reached =
      places_[static_cast<std::size_t>(other)].domain == places_[static_cast<std::size_t>(source)].domain;
  return reached ? other : source;
}

Route Topology::route(int source, int target) const {
  Route route;
  const Place& to = places_[static_cast<std::size_t>(target)];
  if (places_[static_cast<std::size_t>(source)].domain == to.domain) {
    route.add(kinds_[kNvlink].out_of(source));
    route.add(kinds_[kNvlink].into(target));
    return route;
  }
  const bool local = places_[static_cast<std::size_t>(source)].node == to.node;
  const int sender = local ? source : proxy(source, target);
  const Place& from = places_[static_cast<std::size_t>(sender)];
  if (sender != source) {
    route.add(kinds_[kNvlink].out_of(source));
    route.add(kinds_[kNvlink].into(sender));
  }
  const bool pcie = local || pcie_to_nic_;
  const bool apart = from.pcie_switch != to.pcie_switch || !pcie_peers_;
  const bool switches = pcie && kinds_[kSwitch].count > 0 && (local ? apart : nic_beyond_switch_);
  if (pcie) route.add(kinds_[kPcie].out_of(sender));
  if (switches) route.add(kinds_[kSwitch].out_of(from.pcie_switch));
  if (switches && local && kinds_[kHost].count > 0) {
    route.add(kinds_[kHost].out_of(from.node));
    route.add(kinds_[kHost].into(from.node));
  }
  if (!local) {
    route.add(kinds_[kNic].out_of(from.nic));
    if (from.leaf != to.leaf) {
      route.add(kinds_[kLeaf].out_of(from.leaf));
      route.add(kinds_[kLeaf].into(to.leaf));
    }
    route.add(kinds_[kNic].into(to.nic));
  }
  if (switches) route.add(kinds_[kSwitch].into(to.pcie_switch));
  if (pcie) route.add(kinds_[kPcie].into(target));
  return route;
}

bool Topology::of_all_blocks(LinkId link) const { return link >= kinds_[kLeaf].first && leaf_groups_ == 1; }

LinkId Topology::in_first_block(LinkId link, int blocks) const {
  for (const Kind& kind : kinds_) {
    if (kind.count == 0 || link < kind.first || link >= kind.first + 2 * kind.count) continue;
    if (of_all_blocks(link)) return link;
    const int index = link - kind.first, direction = index / kind.count;
    return kind.first + direction * kind.count + index % kind.count % (kind.count / blocks);
  }
  return link;
}

std::vector<double> Topology::block_capacities(int blocks) const {
  std::vector<double> capacities = capacities_;
  for (std::size_t link = 0; link < capacities.size(); ++link) {
    if (of_all_blocks(static_cast<LinkId>(link))) capacities[link] /= blocks;
  }
  return capacities;
}

std::string Topology::name(LinkId link) const {
  for (const Kind& kind : kinds_) {
    const int index = link - kind.first;
    if (index < 0 || index >= 2 * kind.count) continue;
    return str(kind.what, " ", index % kind.count, " ", index < kind.count ? kind.out : kind.in);
  }
  throw InvalidInput(str("there is no link ", link, "; the last one is ", num_links() - 1));
}

LinkId Topology::find(const std::string& wanted) const {
  const auto links = static_cast<LinkId>(num_links());
  for (LinkId link = 0; link < links; ++link) {
    if (name(link) == wanted) return link;
  }
  std::vector<std::string> known;
  for (const Kind& kind : kinds_) {
    if (kind.count > 0)
      known.push_back(str("\"", name(kind.first), "\" to \"", name(kind.into(kind.count - 1)), "\""));
  }
  throw InvalidInput(str("there is no link \"", wanted, "\"; there are ", join(known, ", ")));
}

}  // namespace cp::sim
