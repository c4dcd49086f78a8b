// FlowTransfers: messages between GPUs as flows over a topology. It tells when each message has left its
// sender and when it has arrived.
//
// A message occupies the links of its route at the rate that FlowNetwork gives it. Its sender is free when
// the last byte has left; the message arrives the route's latency after that. If a curve was measured, the
// rate is at most what transfer_gbps() says for the message's size, and the latency is already part of it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/network/flow_network.h"
#include "sim/cost/network/topology.h"

namespace cp::sim {

// The limits of a message of some size that hold whatever else is under way.
class MessageBounds {
 public:
  MessageBounds(const Topology& topology, const TransferCurves& curves)
      : topology_(topology), curves_(curves) {}

  // The cap of the message's rate in GB/s; infinite if no curve was measured.
  double cap(bool inside, double bytes);
  double latency_ns(int source, int target) const;
  // Its rate in GB/s if nothing else uses a link of its route.
  double limit(const Route& route, bool inside, double bytes);

 private:
  struct Known {
    double bytes = 0, cap = std::numeric_limits<double>::infinity();
  };
  const Topology& topology_;
  const TransferCurves& curves_;
  std::array<Known, 2> last_;  // by inside
};

class FlowTransfers {
 public:
  struct Event {
    double at_ns;
    bool arrived;  // else it has left its sender
    std::uint64_t tag;
  };

  // Both outlive this.
  FlowTransfers(const Topology& topology, const TransferCurves& curves);

  // The GPUs differ, bytes > 0. now: no earlier than the last event and no later than next_ns(). Each message
  // makes two events with its tag: it left, it arrived.
  void send(double now_ns, int source, int target, double bytes, std::uint64_t tag);

  bool idle() const { return network_.idle() && arrivals_[0].empty() && arrivals_[1].empty(); }
  double next_ns();  // of the next event, if nothing is sent before; not when idle
  Event next();
  const FlowNetwork& network() const { return network_; }

 private:
  struct Sent {
    std::uint64_t tag;
    double latency_ns;
    bool inside;
  };
  struct Arrival {
    double at_ns;
    std::uint64_t tag;
  };
  // Messages of one latency arrive in the order in which they left.
  class ArrivalQueue {
   public:
    bool empty() const { return head_ == items_.size(); }
    const Arrival& front() const { return items_[head_]; }
    void push(const Arrival& arrival);
    void pop() { ++head_; }

   private:
    std::vector<Arrival> items_;
    std::size_t head_ = 0;
  };
  const Arrival* next_arrival() const;

  const Topology& topology_;
  MessageBounds bounds_;
  FlowNetwork network_;
  std::vector<Sent> sent_;                // by flow
  std::array<ArrivalQueue, 2> arrivals_;  // by inside
};

}  // namespace cp::sim
