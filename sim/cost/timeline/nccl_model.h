// Collectives by algebra, where nobody measured them: each algorithm and protocol has a latency, a rate and
// what it takes to fill its pipeline, and the library takes the fastest for the size. Ring, tree and NVLS by
// the protocols LL, LL128 and Simple, as NCCL has them; pairwise all-to-all and send/recv; and a reduction
// inside of nodes, across them, and inside again.
//
// Latencies are in proportion to the cluster's own: transfer.intra_node_latency_us, the time of the smallest
// send/recv inside of a node, and network.latency_us, that of the smallest one between nodes. Rates are
// shares of the links' rates. Both kinds of share were fitted to measured collectives (nccl_constants.h says
// which, and how far off the others are).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/types.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

enum class CollectiveKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  send_recv
};
std::string_view name(CollectiveKind kind);
// Of a curve's operation; "exchange", which nccl-tests calls sendrecv, is send_recv. Of one that
// validate_cluster() accepts.
CollectiveKind collective_kind(std::string_view operation);

enum class Algorithm : std::uint8_t { ring, tree, nvls, pairwise, hierarchical };
enum class Protocol : std::uint8_t { ll, ll128, simple };
std::string_view name(Algorithm algorithm);
std::string_view name(Protocol protocol);

// What the library is told.
struct CollectiveSettings {
  bool nvls = true;               // use the switches' reductions where the cluster has them
  int channels_per_net_peer = 2;  // of send/recv and all-to-all across nodes (NCCL_NCHANNELS_PER_NET_PEER)
  // Of tensor-parallel ranks: SoftwareProfile::all_reduce. Empty or "nccl": the library's.
  std::string all_reduce = {};
};

// How the members of a group lie on the nodes.
struct Spread {
  int gpus = 0, nodes = 0;
  int fewest_on_a_node = 0;
  // On islands, which are NVLink domains of several nodes, or nodes. 0: on as few as hold those nodes.
  int islands = 0, fewest_on_an_island = 0;
  // On the PCIe switches of the node where they lie on most of them, and the most on one switch. 0: on as few
  // as hold them.
  int switches = 0, most_on_a_switch = 0;
  bool nvlink = true;  // those of an island reach each other by NVLink, where the cluster has any
};
Spread spread_of(std::span<const Rank> gpus, const Cluster& cluster);

// Latency + bytes / rate + the time to fill the pipeline, which grows with the bytes up to `fill_us`, half of
// it at `fill_bytes`; for nccl-tests' bytes: the whole buffer of one GPU (all blocks of an all-gather,
// reduce-scatter or all-to-all; of send_recv the message that every GPU sends to the next one).
struct CollectiveChoice {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  double latency_us = 0, algorithm_gbps = 0;
  double fill_us = 0, fill_bytes = 1;
  double us(double bytes) const {
    return latency_us + fill_us * bytes / (bytes + fill_bytes) + bytes / algorithm_gbps * 1e-3;
  }
};

// Whatever the library has for it on that cluster; at least one for two GPUs and more.
std::vector<CollectiveChoice> collective_choices(CollectiveKind kind, const Spread& spread,
                                                 const Cluster& cluster,
                                                 const CollectiveSettings& settings = {});
CollectiveChoice fastest(const std::vector<CollectiveChoice>& choices, double bytes);

}  // namespace cp::sim
