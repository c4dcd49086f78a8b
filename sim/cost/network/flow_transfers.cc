#include "sim/cost/network/flow_transfers.h"

#include <algorithm>

#include "sim/cost/cluster/transfer_rate.h"

namespace cp::sim {

double MessageBounds::cap(bool inside, double bytes) {
  const Curve& curve = inside ? curves_.intra_node : curves_.inter_node;
  Known& last = last_[inside ? 1 : 0];
  const double latency_us = topology_.latency_ns(inside) / 1e3;
  if (!curve.empty() && last.bytes != bytes) last = {bytes, transfer_gbps(curve, latency_us, bytes)};
  return last.cap;
}

double MessageBounds::latency_ns(int source, int target) const {
  const bool measured = !(topology_.inside(source, target) ? curves_.intra_node : curves_.inter_node).empty();
  return measured ? 0 : topology_.latency_ns(source, target);
}

double MessageBounds::limit(const Route& route, bool inside, double bytes) {
  double limit = cap(inside, bytes);
  for (const LinkId link : route.links()) {
    limit = std::min(limit, topology_.capacities()[static_cast<std::size_t>(link)]);
  }
  return limit;
}

FlowTransfers::FlowTransfers(const Topology& topology, const TransferCurves& curves)
    : topology_(topology), bounds_(topology, curves), network_(topology.capacities()) {}

void FlowTransfers::send(double now_ns, int source, int target, double bytes, std::uint64_t tag) {
  const bool inside = topology_.inside(source, target);
  const Route route = topology_.route(source, target);
  const auto flow =
      static_cast<std::size_t>(network_.start(now_ns, route.links(), bytes, bounds_.cap(inside, bytes)));
  if (flow >= sent_.size()) sent_.resize(flow + 1);
  sent_[flow] = {tag, bounds_.latency_ns(source, target), inside};
}

const FlowTransfers::Arrival* FlowTransfers::next_arrival() const {
  const Arrival* first = nullptr;
  for (const ArrivalQueue& queue : arrivals_) {
    if (!queue.empty() && (first == nullptr || queue.front().at_ns < first->at_ns)) first = &queue.front();
  }
  return first;
}

double FlowTransfers::next_ns() {
  const Arrival* arrival = next_arrival();
  // What arrives now may start flows that change all rates: they are not asked for before that.
  if (arrival != nullptr && (network_.idle() || arrival->at_ns <= network_.now_ns())) return arrival->at_ns;
  const double end = network_.next_end_ns();
  return arrival != nullptr ? std::min(end, arrival->at_ns) : end;
}

FlowTransfers::Event FlowTransfers::next() {
  const double now = next_ns();
  for (ArrivalQueue& queue : arrivals_) {
    if (queue.empty() || queue.front().at_ns > now) continue;
    const Arrival arrival = queue.front();
    queue.pop();
    return {arrival.at_ns, true, arrival.tag};
  }
  const Sent& sent = sent_[static_cast<std::size_t>(network_.end_next())];
  arrivals_[sent.inside ? 1 : 0].push({now + sent.latency_ns, sent.tag});
  return {now, false, sent.tag};
}

void FlowTransfers::ArrivalQueue::push(const Arrival& arrival) {
  if (empty()) {
    items_.clear();
    head_ = 0;
  } else if (head_ >= 1024 && head_ > items_.size() / 2) {
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
  items_.push_back(arrival);
}

}  // namespace cp::sim
