// PortLoads: the load that the collectives of one rank put on the ports of its GPU, if all members of a group
// do the same thing at the same time. It is a closed formula, without flows or the topology of the cluster.
//
// A GPU has two ports: one to the other GPUs of its NVLink domain or node, and one to other nodes (its part
// of a NIC). All flows of a collective through a port count as one. What is simplified, where replay() knows
// more: leaf switches and the spine never limit a transfer, and PCIe on the way to a NIC or between switches
// limits only the flows of one collective, not several collectives together.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {

struct PortFlow {
  double delay_ns = 0;  // before its first byte
  double bytes = 0;     // 0: only the delay
  double gbps = 0;      // at most, whatever else is under way
  double flows = 1;     // that it counts as where a port is short
  double load = 1;      // of the port, for each byte: above 1 where others share what lies behind it
};

struct PortLoad {
  PortFlow inside, network;
  double sent_inside = 0, sent_network = 0;  // bytes of this GPU
  bool transfers_at_once = false;  // kernels run beside transfers from its beginning, not after the delay
};

class PortLoads {
 public:
  // All must outlive this. Throws InvalidInput where a rank of the plan's groups has no GPU on the cluster.
  PortLoads(const Plan& plan, const Cluster& cluster, const CollectiveSettings& settings);

  double inside_gbps() const { return inside_gbps_; }
  double network_gbps() const { return cluster_.network.nic_gbps; }

  PortLoad of(const Collective& collective);

 private:
  struct Members;
  struct World {
    Spread spread;
    bool one_domain = false;  // nothing goes between nodes
    std::int32_t self = 0;    // index in the group
  };
  // To the member that many places further on: what is sent there, what comes from as far behind.
  struct Offset {
    std::int32_t places = 0;
    double sent = 0, received = 0;
    double bytes() const { return sent > received ? sent : received; }
    bool operator==(const Offset&) const = default;
  };
  struct Known {  // of the last exchange of a group: rings repeat theirs
    std::vector<Offset> offsets;
    PortLoad load;
  };

  World world_of(const Group& group) const;
  int domain_of(Rank rank) const { return nvlink_ ? rank / cluster_.node.nvlink_domain : -1 - rank; }
  PortLoad together(const Collective& collective, const World& world) const;
  void ring(double bytes, double alone_ns, const World& world, PortLoad& load) const;
  void all_to_all(double bytes, double alone_ns, const World& world, PortLoad& load) const;
  PortLoad exchange(const Exchange& exchange, std::size_t group);
  std::vector<Offset> offsets_of(const Exchange& exchange, std::size_t group) const;
  PortLoad shifted(const std::vector<Offset>& offsets, std::size_t group) const;

  const Plan& plan_;
  const Cluster& cluster_;
  const CollectiveSettings& settings_;
  const bool nvlink_;
  const double inside_gbps_;
  std::vector<World> worlds_;  // by group
  std::vector<Known> known_;   // by group
};

}  // namespace cp::sim
