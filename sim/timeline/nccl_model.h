// Collectives by algebra, where nobody measured them: each algorithm and protocol has a latency and a rate, and the library
// takes the fastest for the size. Ring, tree and NVLS in the manner of NCCL's tuner (src/graph/tuning.cc, NCCL 2.28: its
// latencies are taken over as facts); pairwise all-to-all and send/recv, which that tuner lacks; and a reduction inside of
// nodes, across them, and inside again.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shared/base/types.h"
#include "sim/cluster/cluster.h"

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

enum class Algorithm : std::uint8_t { ring, tree, nvls, pairwise, hierarchical };
enum class Protocol : std::uint8_t { ll, ll128, simple };
std::string_view name(Algorithm algorithm);
std::string_view name(Protocol protocol);

// What the library is told.
struct CollectiveSettings {
  bool nvls = true;               // use the switches' reductions where the cluster has them
  int channels_per_net_peer = 2;  // of send/recv and all-to-all across nodes (NCCL_NCHANNELS_PER_NET_PEER)
};

// How the members of a group lie on the nodes.
struct Spread {
  int gpus = 0, nodes = 0;
  int fewest_on_a_node = 0;
};
Spread spread_of(std::span<const Rank> gpus, const Cluster& cluster);

// bytes / rate + latency, for nccl-tests' bytes: the whole buffer of one GPU (all blocks of an all-gather, reduce-scatter
// or all-to-all; of send_recv the message that every GPU sends to the next one).
struct CollectiveChoice {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  double latency_us = 0, algorithm_gbps = 0;
  double us(double bytes) const { return latency_us + bytes / algorithm_gbps * 1e-3; }
};

// Whatever the library has for it on that cluster; at least one for two GPUs and more.
std::vector<CollectiveChoice> collective_choices(CollectiveKind kind, const Spread& spread,
                                                 const Cluster& cluster,
                                                 const CollectiveSettings& settings = {});
CollectiveChoice fastest(const std::vector<CollectiveChoice>& choices, double bytes);

}  // namespace cp::sim
