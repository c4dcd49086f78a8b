#include "sim/cost/timeline/nccl_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "sim/cost/timeline/nccl_constants.h"
#include "sim/cost/timeline/pcie_paths.h"

namespace cp::sim {
namespace {

using namespace nccl;

// Of several nodes, or one.
int nodes_of_island(const Cluster& cluster) {
  return std::max(1, cluster.node.nvlink_domain / cluster.node.gpus);
}

Spread with_islands(Spread spread, const Cluster& cluster) {
  if (spread.islands > 0) return spread;
  const int nodes = nodes_of_island(cluster);
  spread.islands = (spread.nodes + nodes - 1) / nodes;
  spread.fewest_on_an_island = std::min(spread.gpus, spread.fewest_on_a_node * nodes);
  return spread;
}

class Model {
 public:
  Model(CollectiveKind kind, const Spread& spread, const Cluster& cluster, const CollectiveSettings& settings)
      : kind_(kind),
        spread_(with_islands(spread, cluster)),
        cluster_(cluster),
        settings_(settings),
        alone_(spread_.islands == 1),
        nvlink_(cluster.node.nvlink_gbps > 0 && spread.nvlink),
        near_us_(cluster.transfer.intra_node_latency_us),
        far_us_(cluster.network.latency_us) {
    const int members = alone_ ? spread_.gpus : spread_.fewest_on_an_island;
    paths_ = {cluster.node.nvlink_gbps, cluster.node.nvlink_gbps};
    if (!nvlink_ && members > 1) paths_ = pcie_paths(spread_, members, cluster.node);
    if (!alone_) nic_gbps_ = cluster.network.nic_gbps / cluster.network.gpus_per_nic;
  }

  std::vector<CollectiveChoice> choices() && {
    choices_.reserve(8);  // mostly enough; bounds ask for millions of these
    if (kind_ == CollectiveKind::all_to_all || kind_ == CollectiveKind::send_recv) {
      if (alone_) {
        add_pairs();
      } else {
        add_pairs_across();
      }
      return std::move(choices_);
    }
    if (alone_) {
      add_rings();
    } else {
      add_rings_across();
    }
    if (kind_ == CollectiveKind::all_reduce && spread_.nodes > 1) add_tree();
    if (settings_.nvls && cluster_.node.nvls) add_nvls();
    if (kind_ == CollectiveKind::all_reduce && !alone_ && spread_.fewest_on_an_island > 1) add_hierarchical();
    return std::move(choices_);
  }

 private:
  double n() const { return spread_.gpus; }
  double islands() const { return spread_.islands; }
  double passes() const { return kind_ == CollectiveKind::all_reduce ? 2 : 1; }
  double steps() const { return passes() * (n() - 1); }

  // What a GPU sends in all, over the size that nccl-tests counts.
  double ring_share() const { return kind_ == CollectiveKind::broadcast ? 1 : passes() * (n() - 1) / n(); }

  void add(Algorithm algorithm, Protocol protocol, double latency_us, double ns_per_byte, double fill_us = 0,
           double fill_bytes = 1) {
    choices_.push_back({algorithm, protocol, latency_us, 1 / ns_per_byte, fill_us, fill_bytes});
  }

  double ll_us(const Latency& latency, double inside_steps) const {
    return near_us_ * (latency.base + latency.step * inside_steps);
  }

  void add_rings() {
    const double link_ns = 1 / paths_.ring_gbps, carried = ring_share() * link_ns;
    const Latency& ll = nvlink_ ? kLl : kPcieLl;
    const Latency& simple = nvlink_ ? kSimple : kPcieSimple;
    add(Algorithm::ring, Protocol::ll, ll_us(ll, steps()), (nvlink_ ? kLlTime : kPcieLlTime) * carried,
        near_us_ * kLlFill, n() * kLlFillBytes);
    if (!nvlink_) return add(Algorithm::ring, Protocol::simple, ll_us(simple, steps()), kPcieTime * carried);
    add(Algorithm::ring, Protocol::ll128, ll_us(kLl128, steps()), kLl128Time * carried);
    const bool copies = kind_ == CollectiveKind::all_gather || kind_ == CollectiveKind::reduce_scatter;
    add(Algorithm::ring, Protocol::simple, ll_us(simple, steps()),
        kSimpleTime * carried + (copies ? kOwnBlock / n() * link_ns : 0), fill_us(kSimpleFillUs),
        kSimpleFillBytes);
  }

  // A filled pipeline is a matter of the GPU, not of the machine: but where nothing else takes time, this
  // does not either.
  double fill_us(double us) const { return near_us_ > 0 ? us : 0; }

  // Of channels, whatever the links' rate.
  double most_gbps(double gbps) const {
    return gbps * std::pow(cluster_.node.nvlink_gbps / kMostAtGbps, kMostGrowth);
  }

  // A ring comes through every GPU of a node in turn, so that the NICs of all are at work.
  double across_ns() const {
    const double across = 1 / (kRingShare * nic_gbps_ * spread_.fewest_on_an_island);
    if (spread_.fewest_on_an_island == 1) return across;
    return std::max(across, (nvlink_ ? kSimpleTime : kPcieTime) / paths_.ring_gbps);
  }

  void add_rings_across() {
    const double hops = passes() * (islands() - 1), inside = steps() - hops;
    const double ns = across_ns() * ring_share();
    add(Algorithm::ring, Protocol::ll, ll_us(nvlink_ ? kLl : kPcieLl, inside) + hops * kLlHop * far_us_,
        kNetworkLlTime * ns, near_us_ * kLlFill, n() * kLlFillBytes);
    add(Algorithm::ring, Protocol::simple,
        ll_us(nvlink_ ? kSimple : kPcieSimple, inside) + hops * kSimpleHop * far_us_, ns,
        kNetworkFillHops * far_us_, kNetworkFillBytes);
  }

  // Along the GPUs of each node, and up and down a tree of the nodes, which may be trays of one NVLink
  // domain.
  void add_tree() {
    const double per_node = n() / spread_.nodes, depth = std::ceil(std::log2(spread_.nodes));
    const double far_steps = alone_ ? 0 : depth, near_steps = per_node - 1 + (alone_ ? depth : 0);
    const double ns = 2 / kTreeShare * (alone_ ? kSimpleTime / paths_.ring_gbps : across_ns());
    const Latency& ll = nvlink_ ? kLl : kPcieLl;
    const Latency& simple = nvlink_ ? kSimple : kPcieSimple;
    add(Algorithm::tree, Protocol::ll, ll_us(ll, 2 * near_steps) + 2 * far_steps * kLlHop * far_us_,
        (alone_ ? kLlTime : kNetworkLlTime) * ns, near_us_ * kLlFill, n() * kLlFillBytes);
    add(Algorithm::tree, Protocol::simple,
        ll_us(simple, 2 * near_steps) + 2 * far_steps * kSimpleHop * far_us_, ns,
        alone_ ? fill_us(kSimpleFillUs) : kNetworkFillHops * far_us_,
        alone_ ? kSimpleFillBytes : kNetworkFillBytes);
  }

  // The switch adds up what all have and gives it to all: once each way through a GPU's link. NCCL has it for
  // all-reduces of more than two GPUs, and for the others only where the network's switches reduce too.
  void add_nvls() {
    if (kind_ == CollectiveKind::broadcast || n() < 3) return;
    const bool all_reduce = kind_ == CollectiveKind::all_reduce;
    if (!all_reduce && (alone_ || !cluster_.network.sharp)) return;
    const double share = all_reduce ? 1 : (n() - 1) / n();
    const double inside = std::max(kNvlsTime / cluster_.node.nvlink_gbps, 1 / most_gbps(kNvlsMostGbps));
    if (alone_) {
      return add(Algorithm::nvls, Protocol::simple, near_us_ * kNvls, share * inside, fill_us(kNvlsFillUs),
                 kNvlsFillBytes);
    }
    const double across = 1 / (kNvlsShare * nic_gbps_ * spread_.fewest_on_an_island);
    const double depth = cluster_.network.sharp ? 1 : std::max(1.0, std::ceil(std::log2(islands())));
    add(Algorithm::nvls, Protocol::simple, near_us_ * kNvls + depth * kSimpleHop * far_us_,
        share * std::max(inside, across), fill_us(2 * kNvlsFillUs), kNvlsFillBytes);
  }

  // Reduce-scatter inside of each node, all-reduce of each part across, all-gather inside.
  void add_hierarchical() {
    const double inside = spread_.fewest_on_an_island, outside = islands();
    const double near = (nvlink_ ? kSimpleTime : kPcieTime) / paths_.ring_gbps;
    const double far = 1 / (kRingShare * nic_gbps_);
    const double ns = 2 * (inside - 1) / inside * near + 2 * (outside - 1) / outside / inside * far;
    add(Algorithm::hierarchical, Protocol::simple,
        ll_us(nvlink_ ? kSimple : kPcieSimple, 2 * (inside - 1)) + 2 * (outside - 1) * kSimpleHop * far_us_,
        ns, kNetworkFillHops * far_us_, kNetworkFillBytes);
  }

  // Inside of a node or a domain. Send/recv is that of a chain: each to the next one.
  void add_pairs() {
    const bool all = kind_ == CollectiveKind::all_to_all;
    const double peers = all ? n() - 1 : 1, of_peer = all ? 1 / n() : 1;  // a message, of the size
    const double more = (nvlink_ ? kPairPeer : kPciePairPeer) * (peers - 1);
    const double ll_ns = of_peer / (nvlink_ ? kPairLlGbps : kPciePairLlGbps);
    double ns = 0;
    if (!nvlink_) {
      ns = kPciePairTime / (all ? paths_.all_to_all_gbps : paths_.ring_gbps);
      // Other than over NVLink, all peers' bytes meet on a link that LL could fill.
      add(Algorithm::pairwise, Protocol::ll, near_us_ * (1 + more), ll_ns + ns);
      return add(Algorithm::pairwise, Protocol::simple, near_us_ * (kPciePairSimple + more), ns);
    }
    const double link_ns = 1 / cluster_.node.nvlink_gbps;
    ns = std::max((kPairTime * peers * of_peer + (all ? kPairOwn / n() : 0)) * link_ns,
                  1 / most_gbps(kPairMostGbps));
    add(Algorithm::pairwise, Protocol::ll, near_us_ * (kPairLl + more), std::max(ll_ns, ns));
    add(Algorithm::pairwise, Protocol::simple, near_us_ * (kPairSimple + more), ns, fill_us(kPairFillUs),
        kPairFillBytes);
  }

  void add_pairs_across() {
    const int channels = settings_.channels_per_net_peer;
    const double pair = kChannelGbps * channels;
    if (kind_ == CollectiveKind::send_recv) {
      const double ns = 1 / std::min(kPairShare * nic_gbps_, pair);
      add(Algorithm::pairwise, Protocol::ll, far_us_, std::max(ns, 1 / kPairLlGbps));
      return add(Algorithm::pairwise, Protocol::simple, kSimpleHop * far_us_, ns);
    }
    const double inside = spread_.fewest_on_an_island - 1, outside = n() - 1 - inside;
    const double nic = std::min(kPairShare, kPairShareOfChannel * channels) * nic_gbps_;
    const double far = outside / n() / std::min(nic, pair * std::max(1.0, outside));
    double near = 0;
    if (inside > 0) {
      near = nvlink_ ? kPairTime * inside / n() / cluster_.node.nvlink_gbps
                     : kPciePairTime * (inside + 1) / n() / paths_.all_to_all_gbps;
    }
    add(Algorithm::pairwise, Protocol::simple, near_us_ * kPairBase + far_us_, std::max(near, far),
        kPairFillHops * far_us_, kPairNetworkFillBytes);
  }

  const CollectiveKind kind_;
  const Spread spread_;
  const Cluster& cluster_;
  const CollectiveSettings& settings_;
  const bool alone_, nvlink_;      // nothing goes through the network; nothing inside goes over PCIe
  const double near_us_, far_us_;  // the smallest send/recv inside of a node, between nodes
  PciePaths paths_;                // inside; of NVLink just its rate
  double nic_gbps_ = 0;            // of a GPU, if all of its node send at once
  std::vector<CollectiveChoice> choices_;
};

}  // namespace

std::string_view name(CollectiveKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"all_gather", "reduce_scatter", "all_reduce",
                                                      "all_to_all", "broadcast",      "send_recv"};
  return kNames[static_cast<std::size_t>(kind)];
}

CollectiveKind collective_kind(std::string_view operation) {
  if (operation == "exchange") return CollectiveKind::send_recv;
  for (const CollectiveKind kind :
       {CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_reduce,
        CollectiveKind::all_to_all, CollectiveKind::broadcast, CollectiveKind::send_recv}) {
    if (name(kind) == operation) return kind;
  }
  CP_INVARIANT(false, "unknown collective ", operation);
  return CollectiveKind::send_recv;
}

std::string_view name(Algorithm algorithm) {
  constexpr std::array<std::string_view, 5> kNames = {"ring", "tree", "nvls", "pairwise", "hierarchical"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::string_view name(Protocol protocol) {
  constexpr std::array<std::string_view, 3> kNames = {"LL", "LL128", "Simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

Spread spread_of(std::span<const Rank> gpus, const Cluster& cluster) {
  const Node& node = cluster.node;
  std::map<int, std::map<int, int>> on_nodes;  // members of each switch
  std::map<int, int> on_islands;
  std::map<int, int> domains;  // of the first member of each node
  Spread spread;
  spread.gpus = spread.fewest_on_a_node = spread.fewest_on_an_island = static_cast<int>(gpus.size());
  for (const Rank gpu : gpus) {
    const int host = cluster.node_of(gpu), domain = gpu / node.nvlink_domain;
    ++on_nodes[host][gpu % node.gpus / node.gpus_per_pcie_switch];
    ++on_islands[host / nodes_of_island(cluster)];
    const auto seen = domains.emplace(host, domain);
    spread.nvlink = spread.nvlink && seen.first->second == domain;
  }
  spread.nodes = static_cast<int>(on_nodes.size()), spread.islands = static_cast<int>(on_islands.size());
  for (const auto& [host, switches] : on_nodes) {
    int members = 0;
    for (const auto& [pcie_switch, count] : switches) {
      members += count, spread.most_on_a_switch = std::max(spread.most_on_a_switch, count);
    }
    spread.fewest_on_a_node = std::min(spread.fewest_on_a_node, members);
    spread.switches = std::max(spread.switches, static_cast<int>(switches.size()));
  }
  for (const auto& [island, members] : on_islands)
    spread.fewest_on_an_island = std::min(spread.fewest_on_an_island, members);
  return spread;
}

std::vector<CollectiveChoice> collective_choices(CollectiveKind kind, const Spread& spread,
                                                 const Cluster& cluster, const CollectiveSettings& settings) {
  CP_INVARIANT(spread.gpus > 1, spread.gpus, " GPUs have nothing to tell each other");
  return Model(kind, spread, cluster, settings).choices();
}

CollectiveChoice fastest(const std::vector<CollectiveChoice>& choices, double bytes) {
  return *std::min_element(
      choices.begin(), choices.end(),
      [&](const CollectiveChoice& a, const CollectiveChoice& b) { return a.us(bytes) < b.us(bytes); });
}

}  // namespace cp::sim
