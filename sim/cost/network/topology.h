// The links of a cluster, and which of them a transfer between two GPUs crosses.
//
//   in an NVLink domain    nvlink out, nvlink in
//   in a node without it   pcie up, [pcie switch up, [host in, host out,] pcie switch down,] pcie down
//   between nodes          [pcie up, ... ,] nic tx, [leaf up, leaf down,] nic rx [, ... , pcie down]
//
// The links in brackets are crossed only in these cases:
//   - those of a PCIe switch, if the other end (GPU or NIC) is on another switch, and also between GPUs of
//     one switch if these cannot access each other;
//   - those of the host, if what it moves has a limit (Node::pcie_host_gbps);
//   - those of leaves, if the two NICs are on different leaves. The spine above the leaves never limits.
// Between nodes, PCIe is left out if it carries nothing else and is no slower than the NIC.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/network/flow_network.h"

namespace cp::sim {

// What makes single links faster or slower than their kind. If several factors apply to a link, they are
// multiplied.
struct LinkFactors {
  // Every link's capacity times a factor drawn from [1 - spread, 1 + spread]; spread in [0, 1).
  double spread = 0;
  std::uint64_t seed = 0;
  struct SlowLink {
    std::string name;  // as Topology::name says it
    double factor = 1;
  };
  std::vector<SlowLink> links = {};
  struct SlowGpu {
    int gpu = 0;
    double factor = 1;  // of its NVLink, PCIe, and NIC if it shares that with nobody
  };
  std::vector<SlowGpu> gpus = {};
};

struct RouteOptions {
  // A message to another rail goes by NVLink to the GPU of its node on that rail first (NCCL's PXN), if there
  // are rails.
  bool cross_rails_by_nvlink = false;
};

// The links that a transfer crosses, in order.
class Route {
 public:
  void add(LinkId link) { links_[size_++] = link; }
  std::span<const LinkId> links() const& { return {links_.data(), size_}; }
  std::span<const LinkId> links() const&& = delete;  // would point into what is gone

 private:
  std::array<LinkId, FlowNetwork::kMaxPath> links_{};
  std::size_t size_ = 0;
};

class Topology {
 public:
  // Throws InvalidInput: the cluster has GPUs that no link joins, or factors that name no link, no GPU, or
  // are not above 0.
  explicit Topology(const Cluster& cluster, const LinkFactors& factors = {}, RouteOptions options = {});

  int num_gpus() const { return static_cast<int>(places_.size()); }
  std::size_t num_links() const { return capacities_.size(); }
  const std::vector<double>& capacities() const { return capacities_; }  // GB/s, by link

  int node_of(int gpu) const { return places_[static_cast<std::size_t>(gpu)].node; }
  // The two are different GPUs.
  Route route(int source, int target) const;
  // Whether that route stays among GPUs, off the network between nodes.
  bool inside(int source, int target) const;
  double latency_ns(int source, int target) const { return latency_ns(inside(source, target)); }
  double latency_ns(bool inside) const { return inside ? inside_ns_ : between_ns_; }

  // "gpu 13 nvlink out", "gpu 2 pcie up", "pcie switch 1 down", "nic 3 tx", "leaf 0 up": GPUs, switches, NICs
  // and leaves are numbered through the cluster; with rails, leaf l holds the NICs number l of the nodes of
  // the first group, and so on.
  std::string name(LinkId link) const;
  LinkId find(const std::string& name) const;  // throws InvalidInput with what there is
  // Of so many equal blocks of nodes, each with whole leaves if there are several: the first block's link
  // that is like this one, and what of each link's capacity is a block's. Leaves of all nodes together are
  // shared by the blocks.
  LinkId in_first_block(LinkId link, int blocks) const;
  std::vector<double> block_capacities(int blocks) const;

 private:
  // What one GPU hangs on.
  struct Place {
    int domain, node, pcie_switch, nic, leaf;
  };
  // Two directions of a kind of link, one after the other.
  struct Kind {
    const char *what, *out, *in;
    int count = 0;
    LinkId first = 0;
    LinkId out_of(int index) const { return first + index; }
    LinkId into(int index) const { return first + count + index; }
  };
  enum KindId : std::uint8_t { kNvlink, kPcie, kSwitch, kHost, kNic, kLeaf, kKinds };

  void place_gpus(const Cluster& cluster);
  void add_links(const Cluster& cluster);
  void apply(const LinkFactors& factors);
  void check_joined(const Cluster& cluster) const;
  int proxy(int source, int target) const;
  bool of_all_blocks(LinkId link) const;

  std::array<Kind, kKinds> kinds_;
  std::vector<Place> places_;  // by GPU
  std::vector<double> capacities_;
  int gpus_per_nic_, gpus_per_node_, nics_per_node_, leaf_groups_ = 1;
  bool nvlink_, pcie_peers_, pcie_to_nic_, nic_beyond_switch_, cross_rails_by_nvlink_;
  double inside_ns_, between_ns_;
};

}  // namespace cp::sim
