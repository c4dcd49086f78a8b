// FlowNetwork: flows that share links. Each flow gets its max-min fair share of the links that it crosses,
// but at most its own cap. Its rate changes when flows come or go that share a link with it, directly or
// through other flows.
//
// The result is exact: rates are those of progressive filling, and bytes are counted as rate x time between
// changes of the rate. Everything that happens at one time counts as one change. Rates are computed again
// when time moves on, and only for the flows that the change can affect.
//
// Times are in ns, rates in bytes per ns (= GB/s). One thread may use a network.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/cost/network/end_queue.h"

namespace cp::sim {

using LinkId = std::int32_t;
using FlowId = std::int32_t;  // small numbers from 0 on; used again after the flow ended

class FlowNetwork {
 public:
  static constexpr std::size_t kMaxPath = 10;

  // Capacities of the links 0, 1, ...; all finite and > 0.
  explicit FlowNetwork(std::span<const double> capacities);

  // Starts a flow at now_ns, which must not be before the last event nor after next_end_ns(). The path has at
  // most kMaxPath links, none of them twice. If it is empty, the rate is the cap. `cap` is above 0, and may
  // be infinite if the path is not empty. `bytes` is above 0.
  FlowId start(double now_ns, std::span<const LinkId> path, double bytes, double cap);

  // Gives a running flow another cap from now_ns on; now_ns as in start().
  void set_cap(double now_ns, FlowId flow, double cap);

  bool idle() const { return running_ == 0; }
  // Of the last event.
  double now_ns() const { return now_; }
  // When the next flow ends, if nothing starts before that. Must not be called when idle.
  double next_end_ns();
  // Ends that flow and returns it (the smallest number, if several end at once). Its end is then the time of
  // the last event.
  FlowId end_next();

  double rate(FlowId flow);  // of a running flow
  // Bytes that a link has carried up to the last event.
  double carried(LinkId link) const;
  double capacity(LinkId link) const { return links_[static_cast<std::size_t>(link)].capacity; }
  std::size_t num_links() const { return links_.size(); }

 private:
  struct Flow {
    // What settle() reads of it, together.
    double limit = 0;           // min of the cap and the capacities of its links: what it gets when alone
    std::uint32_t visited = 0;  // the round of settle() that saw it
    std::uint32_t path_size = 0;
    std::array<LinkId, kMaxPath> path{};
    double rate = 0;  // since `since`; 0 before the first settle()
    double remaining = 0, since = 0, bytes = 0;
    std::array<std::uint32_t, kMaxPath> place{};  // among the link's members
  };
  struct Member {
    FlowId flow;
    std::uint32_t hop;  // of its path
  };
  struct Link {
    double capacity = 0;
    double units_per_rate = 0;
    // Sum of the members' limits, in parts of the capacity: whole numbers, so that it never drifts.
    std::int64_t demand = 0;
    double carried = 0;  // by flows that ended
    std::vector<Member> members;
    // While settle() fills: what is left of it, for how many members.
    double left = 0;
    std::int64_t unfixed = 0;
    std::uint32_t visited = 0;
    bool dirty = false;
  };
  struct Share {
    double level;
    LinkId link;
  };
  struct Capped {
    double limit;
    FlowId flow;
  };

  void advance(double now_ns);
  Flow& flow_at(FlowId flow) { return flows_[static_cast<std::size_t>(flow)]; }
  Link& link_at(LinkId link) { return links_[static_cast<std::size_t>(link)]; }
  void join(FlowId flow, std::uint32_t hop);
  void leave(FlowId flow, std::uint32_t hop);
  void mark(LinkId link);
  bool is_tight(LinkId link) const { return tight_[static_cast<std::size_t>(link)] != 0; }
  bool is_fixed(FlowId flow) const { return fixed_[static_cast<std::size_t>(flow)] == round_; }
  void update_tight(LinkId link);
  void set_rate(FlowId flow, double rate);

  // max_min.cc
  void settle();
  void collect();
  void visit(FlowId flow);
  void fill();
  double least_share();
  void fix(FlowId flow, double rate);
  void fix_capped(double level);
  void fix_members(LinkId link, double level);

  std::vector<Link> links_;
  // By link: its members could want more than it has; else it bounds no rate and joins nobody.
  std::vector<std::uint8_t> tight_;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> fixed_;  // by flow: the round of settle() that gave it its rate
  std::vector<FlowId> free_;
  EndQueue ends_;
  double now_ = 0;
  std::int64_t running_ = 0;
  std::vector<LinkId> dirty_;

  // Of the current settle(): the flows and links that can feel the change, and the state of filling.
  std::uint32_t round_ = 0;
  std::vector<LinkId> seen_links_;
  std::vector<Share> shares_;    // a heap; least level first; levels may be out of date, then too low
  std::vector<Capped> capped_;   // flows without a rate yet, and some that got one
  std::size_t next_capped_ = 0;  // those before are done
  int scans_ = 0;
  double least_limit_ = 0;
  std::int64_t to_fix_ = 0;
};

}  // namespace cp::sim
