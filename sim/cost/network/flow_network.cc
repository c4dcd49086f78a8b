#include "sim/cost/network/flow_network.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

// Parts of a link's capacity: 2 million flows that each want all of it fit into 63 bits.
constexpr double kUnits = 0x1p42;

std::int64_t units(double limit, double units_per_rate) { return std::llrint(limit * units_per_rate); }

}  // namespace

FlowNetwork::FlowNetwork(std::span<const double> capacities)
    : links_(capacities.size()), tight_(capacities.size(), 0) {
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    if (!std::isfinite(capacities[i]) || capacities[i] <= 0) {
      throw InvalidInput(
          str("the capacity of link ", i, ", ", capacities[i], " GB/s, must be finite and above 0"));
    }
    links_[i].capacity = capacities[i];
    links_[i].units_per_rate = kUnits / capacities[i];
  }
}

void FlowNetwork::advance(double now_ns) {
  if (now_ns <= now_) return;
  CP_INVARIANT(idle() || now_ns <= next_end_ns(), "a flow ends at ", next_end_ns(), " ns, before ", now_ns);
  now_ = now_ns;
}

FlowId FlowNetwork::start(double now_ns, std::span<const LinkId> path, double bytes, double cap) {
  CP_INVARIANT(path.size() <= kMaxPath, "a path of ", path.size(), " links; the most is ", kMaxPath);
  CP_INVARIANT(bytes > 0 && cap > 0 && now_ns >= now_, bytes, " bytes at most ", cap, " GB/s from ", now_ns,
               " ns on, after ", now_, " ns");
  advance(now_ns);
  if (free_.empty()) {
    free_.push_back(static_cast<FlowId>(flows_.size()));
    flows_.emplace_back();
    fixed_.push_back(0);
  }
  const FlowId id = free_.back();
  free_.pop_back();
  ++running_;

  Flow& flow = flow_at(id);
  flow.limit = cap;
  for (const LinkId link : path) flow.limit = std::min(flow.limit, link_at(link).capacity);
  flow.rate = 0;
  flow.bytes = flow.remaining = bytes;
  flow.since = now_;
  flow.path_size = static_cast<std::uint32_t>(path.size());
  std::copy(path.begin(), path.end(), flow.path.begin());
  bool shares = false;
  for (std::uint32_t hop = 0; hop < flow.path_size; ++hop) {
    join(id, hop);
    shares |= is_tight(flow.path[hop]);
  }
  if (!shares) set_rate(id, flow.limit);
  return id;
}

void FlowNetwork::set_cap(double now_ns, FlowId id, double cap) {
  CP_INVARIANT(cap > 0 && now_ns >= now_, "a cap of ", cap, " GB/s from ", now_ns, " ns on, after ", now_,
               " ns");
  advance(now_ns);
  Flow& flow = flow_at(id);
  double limit = cap;
  for (std::uint32_t hop = 0; hop < flow.path_size; ++hop)
    limit = std::min(limit, link_at(flow.path[hop]).capacity);
  if (limit == flow.limit) return;
  bool shares = false;
  for (std::uint32_t hop = 0; hop < flow.path_size; ++hop) {
    Link& link = link_at(flow.path[hop]);
    const bool was_tight = is_tight(flow.path[hop]);
    link.demand += units(limit, link.units_per_rate) - units(flow.limit, link.units_per_rate);
    update_tight(flow.path[hop]);
    if (!was_tight && !is_tight(flow.path[hop])) continue;
    mark(flow.path[hop]);
    shares = true;
  }
  flow.limit = limit;
  if (!shares) set_rate(id, limit);
}

void FlowNetwork::join(FlowId id, std::uint32_t hop) {
  Flow& flow = flow_at(id);
  Link& link = link_at(flow.path[hop]);
  flow.place[hop] = static_cast<std::uint32_t>(link.members.size());
  link.members.push_back({id, hop});
  link.demand += units(flow.limit, link.units_per_rate);
  update_tight(flow.path[hop]);
  if (is_tight(flow.path[hop])) mark(flow.path[hop]);
}

void FlowNetwork::leave(FlowId id, std::uint32_t hop) {
  Flow& flow = flow_at(id);
  Link& link = link_at(flow.path[hop]);
  if (is_tight(flow.path[hop])) mark(flow.path[hop]);
  const Member last = link.members.back();
  link.members[flow.place[hop]] = last;
  flow_at(last.flow).place[last.hop] = flow.place[hop];
  link.members.pop_back();
  link.demand -= units(flow.limit, link.units_per_rate);
  update_tight(flow.path[hop]);
  link.carried += flow.bytes;
}

void FlowNetwork::update_tight(LinkId id) {
  const Link& link = link_at(id);
  // A part for each member is what rounding can add.
  const auto most = static_cast<std::int64_t>(kUnits) + static_cast<std::int64_t>(link.members.size());
  tight_[static_cast<std::size_t>(id)] = link.demand > most ? 1 : 0;
}

void FlowNetwork::mark(LinkId id) {
  Link& link = link_at(id);
  if (link.dirty) return;
  link.dirty = true;
  dirty_.push_back(id);
}

void FlowNetwork::set_rate(FlowId id, double rate) {
  Flow& flow = flow_at(id);
  // Rounding differs with the order in which others were served; a time moved by that says nothing.
  if (std::abs(rate - flow.rate) <= 4e-16 * rate) return;
  flow.remaining = std::max(0.0, flow.remaining - flow.rate * (now_ - flow.since));
  flow.since = now_;
  flow.rate = rate;
  ends_.set(id, now_ + flow.remaining / rate);
}

double FlowNetwork::next_end_ns() {
  // What ends now has no bytes left, whatever the rates will be; so they can wait until time moves on.
  if (!dirty_.empty() && (ends_.empty() || ends_.top().end_ns > now_)) settle();
  CP_INVARIANT(!ends_.empty(), "no flow is running");
  return ends_.top().end_ns;
}

FlowId FlowNetwork::end_next() {
  now_ = next_end_ns();
  const FlowId id = ends_.top().flow;
  ends_.pop();
  Flow& flow = flow_at(id);
  for (std::uint32_t hop = 0; hop < flow.path_size; ++hop) leave(id, hop);
  free_.push_back(id);
  --running_;
  return id;
}

double FlowNetwork::rate(FlowId flow) {
  settle();
  return flow_at(flow).rate;
}

double FlowNetwork::carried(LinkId id) const {
  const Link& link = links_[static_cast<std::size_t>(id)];
  double bytes = link.carried;
  for (const Member& member : link.members) {
    const Flow& flow = flows_[static_cast<std::size_t>(member.flow)];
    bytes += flow.bytes - std::max(0.0, flow.remaining - flow.rate * (now_ - flow.since));
  }
  return bytes;
}

}  // namespace cp::sim
