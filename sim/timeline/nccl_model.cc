#include "sim/timeline/nccl_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

constexpr std::array kProtocols = {Protocol::ll, Protocol::ll128, Protocol::simple};

// In us, by protocol: before the first step, and of each step over NVLink, PCIe and a network.
struct Latencies {
  std::array<double, 3> base, nvlink, pcie, network;
};
constexpr Latencies kRing = {{6.6, 14.0, 8.4}, {0.6, 1.9, 3.4}, {1.0, 2.5, 5.7}, {2.7, 4.0, 14.0}};
constexpr Latencies kTree = {{6.8, 14.0, 8.4}, {0.6, 1.25, 4.0}, {1.0, 1.9, 4.0}, {5.0, 8.5, 14.0}};
constexpr double kNvlsUs = 25, kNvlsNetworkUs = 18;
constexpr double kNvlsShare = 0.85;  // of the links' rate

// Of a transfer's bytes on the link, what is data: half of LL's words are flags, and 8 of LL128's 128 bytes; LL is also bound
// by the copying cores, to about 0.31 of an NVLink (87.7 of 300, 141 of 450, 282 of 900 GB/s).
constexpr double kLl = 0.5, kLl128 = 0.92, kLlMost = 0.31;
constexpr double kTreeShare = 0.92 * 0.85;

// nccl_tests.csv, hgx-b200 on two nodes: send/recv of 2 channels 19.6 GB/s, of 4 channels 35.8.
constexpr double kChannelGbps = 9.8;
// Of the links' rate in long transfers: nccl_tests.csv, hgx-b200, 8 GPUs: 672 of 900 GB/s in all-gather, all-to-all and
// send/recv alike; 308 of 400 across two nodes.
constexpr double kLinkShare = 0.75;

struct Rates {
  double inside = 0;  // of a GPU to others of its node
  double across = 0;  // of a GPU to other nodes, if all of its node send at once; 0: there is one node
};

bool one_domain(const Spread& spread, const Cluster& cluster) {
  return spread.nodes == 1 || cluster.node.nvlink_domain >= cluster.num_gpus();
}

Rates rates_of(const Spread& spread, const Cluster& cluster) {
  const double inside = cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
  if (one_domain(spread, cluster)) return {kLinkShare * inside, 0};
  return {kLinkShare * inside, kLinkShare * cluster.network.nic_gbps / cluster.network.gpus_per_nic};
}

// A ring that comes through every GPU of a node in turn, so that the NICs of all are at work: what it gives each GPU.
double ring_gbps(const Spread& spread, const Rates& rates) {
  if (rates.across == 0) return rates.inside;
  const double across = rates.across * spread.fewest_on_a_node;
  return spread.fewest_on_a_node == 1 ? across : std::min(rates.inside, across);
}

double of_protocol(double gbps, Protocol protocol, const Cluster& cluster) {
  const double link = cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
  switch (protocol) {
    case Protocol::ll:
      return std::min(kLl * gbps, kLlMost * link);
    case Protocol::ll128:
      return kLl128 * gbps;
    case Protocol::simple:
      return gbps;
  }
  return gbps;
}

double at(const std::array<double, 3>& by_protocol, Protocol protocol) {
  return by_protocol[static_cast<std::size_t>(protocol)];
}

double inside_step_us(const Latencies& latencies, Protocol protocol, const Cluster& cluster) {
  return at(cluster.node.nvlink_gbps > 0 ? latencies.nvlink : latencies.pcie, protocol);
}

class Model {
 public:
  Model(CollectiveKind kind, const Spread& spread, const Cluster& cluster, const CollectiveSettings& settings)
      : kind_(kind),
        spread_(spread),
        cluster_(cluster),
        settings_(settings),
        rates_(rates_of(spread, cluster)) {}

  std::vector<CollectiveChoice> choices() {
    if (kind_ == CollectiveKind::all_to_all || kind_ == CollectiveKind::send_recv) {
      add_pairwise();
      return choices_;
    }
    for (const Protocol protocol : kProtocols) {
      add_ring(protocol);
      if (kind_ == CollectiveKind::all_reduce) add_tree(protocol);
    }
    if (settings_.nvls && cluster_.node.nvls && kind_ != CollectiveKind::broadcast) add_nvls();
    if (kind_ == CollectiveKind::all_reduce && rates_.across > 0 && spread_.fewest_on_a_node > 1)
      add_hierarchical();
    return choices_;
  }

 private:
  double n() const { return spread_.gpus; }
  double nodes() const { return rates_.across == 0 ? 1 : spread_.nodes; }

  // What a GPU sends in all, over the size that nccl-tests counts.
  double ring_share() const {
    switch (kind_) {
      case CollectiveKind::all_reduce:
        return 2 * (n() - 1) / n();
      case CollectiveKind::all_gather:
      case CollectiveKind::reduce_scatter:
        return (n() - 1) / n();
      default:
        return 1;
    }
  }

  void add(Algorithm algorithm, Protocol protocol, double latency_us, double gbps) {
    choices_.push_back({algorithm, protocol, latency_us, gbps});
  }

  void add_ring(Protocol protocol) {
    const double passes = kind_ == CollectiveKind::all_reduce ? 2 : 1;
    const double steps = passes * (n() - 1), across = passes * (nodes() - 1);
    const double latency = at(kRing.base, protocol) +
                           (steps - across) * inside_step_us(kRing, protocol, cluster_) +
                           across * (at(kRing.network, protocol) + cluster_.network.latency_us);
    add(Algorithm::ring, protocol, latency,
        of_protocol(ring_gbps(spread_, rates_), protocol, cluster_) / ring_share());
  }

  void add_tree(Protocol protocol) {
    const double per_node = n() / nodes();
    const double latency =
        at(kTree.base, protocol) +
        2 * ((per_node - 1) * inside_step_us(kTree, protocol, cluster_) +
             std::ceil(std::log2(nodes())) * (at(kTree.network, protocol) + cluster_.network.latency_us));
    add(Algorithm::tree, protocol, latency,
        kTreeShare * of_protocol(ring_gbps(spread_, rates_), protocol, cluster_) / 2);
  }

  // The switch gives a GPU's data to all, or adds up what all have: once each way through its link.
  void add_nvls() {
    const bool alone = rates_.across == 0;
    if (!alone && !cluster_.network.sharp && kind_ != CollectiveKind::all_reduce) return;
    double share = 1;
    if (kind_ != CollectiveKind::all_reduce) share = (n() - 1) / n();
    const double inside = kNvlsShare * cluster_.node.nvlink_gbps * kLinkShare;
    const double gbps = alone ? inside : std::min(inside, rates_.across * spread_.fewest_on_a_node);
    const double latency = kNvlsUs + (alone ? 0 : kNvlsNetworkUs + cluster_.network.latency_us) *
                                         (alone ? 1 : std::max(1.0, std::ceil(std::log2(nodes()))));
    add(Algorithm::nvls, Protocol::simple, latency, gbps / share);
  }

  // Reduce-scatter inside of each node, all-reduce of each part across, all-gather inside.
  void add_hierarchical() {
    const double inside = spread_.fewest_on_a_node, outside = nodes();
    const double ns_per_byte =
        2 * (inside - 1) / inside / rates_.inside + 2 * (outside - 1) / outside / inside / rates_.across;
    const double latency =
        at(kRing.base, Protocol::simple) +
        2 * (inside - 1) * inside_step_us(kRing, Protocol::simple, cluster_) +
        2 * (outside - 1) * (at(kRing.network, Protocol::simple) + cluster_.network.latency_us);
    add(Algorithm::hierarchical, Protocol::simple, latency, 1 / ns_per_byte);
  }

  void add_pairwise() {
    const bool alone = rates_.across == 0;
    const double hop_us = alone ? cluster_.transfer.intra_node_latency_us : cluster_.network.latency_us;
    const double step_us = inside_step_us(kRing, Protocol::simple, cluster_);
    const double latency = at(kRing.base, Protocol::simple) + (hop_us > 0 ? hop_us : step_us);
    // Channels bound each pair that crosses nodes; the NIC bounds all of a GPU's pairs together.
    const double pair = std::min(kChannelGbps * settings_.channels_per_net_peer, rates_.across);
    if (kind_ == CollectiveKind::send_recv) {
      add(Algorithm::pairwise, Protocol::simple, latency, alone ? rates_.inside : pair);
      return;
    }
    const double inside = spread_.fewest_on_a_node - 1, outside = alone ? 0 : n() - 1 - inside;
    const double inside_ns = (alone ? n() - 1 : inside) / n() / rates_.inside;
    const double outside_ns =
        alone ? 0 : outside / n() / std::min(rates_.across, pair * std::max(1.0, outside));
    add(Algorithm::pairwise, Protocol::simple, latency, 1 / std::max(inside_ns, outside_ns));
  }

  const CollectiveKind kind_;
  const Spread& spread_;
  const Cluster& cluster_;
  const CollectiveSettings& settings_;
  const Rates rates_;
  std::vector<CollectiveChoice> choices_;
};

}  // namespace

std::string_view name(CollectiveKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"all_gather", "reduce_scatter", "all_reduce",
                                                      "all_to_all", "broadcast",      "send_recv"};
  return kNames[static_cast<std::size_t>(kind)];
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
  std::map<int, int> on_node;
  for (const Rank gpu : gpus) ++on_node[cluster.node_of(gpu)];
  Spread spread{static_cast<int>(gpus.size()), static_cast<int>(on_node.size()),
                static_cast<int>(gpus.size())};
  for (const auto& [node, count] : on_node)
    spread.fewest_on_a_node = std::min(spread.fewest_on_a_node, count);
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
