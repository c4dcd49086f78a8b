// Progressive filling: all rates rise together; a flow stops at its limit, or when a link that it crosses is
// full.
#include <algorithm>
#include <limits>

#include "shared/base/error.h"
#include "sim/cost/network/flow_network.h"

namespace cp::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Flows that may stop at their own limits are searched by passes over all of them; after so many passes they
// are sorted instead. Chosen: most changes need one or two passes. The rates do not depend on it.
constexpr int kScansBeforeSort = 3;

constexpr auto more = [](const auto& a, const auto& b) { return a.level > b.level; };

}  // namespace

void FlowNetwork::settle() {
  if (dirty_.empty()) return;
  collect();
  fill();
}

void FlowNetwork::collect() {
  ++round_;
  seen_links_.clear();
  shares_.clear();
  capped_.clear();
  for (const LinkId id : dirty_) {
    Link& link = link_at(id);
    link.dirty = false;
    // One that is tight no more starts the search, as its members may get more, but bounds nobody.
    if (is_tight(id)) {
      link.visited = round_;
      seen_links_.push_back(id);
    } else {
      for (const Member& member : link.members) visit(member.flow);
    }
  }
  dirty_.clear();
  for (std::size_t i = 0; i < seen_links_.size(); ++i) {
    Link& link = link_at(seen_links_[i]);
    for (const Member& member : link.members) visit(member.flow);
    link.left = link.capacity;
    link.unfixed = static_cast<std::int64_t>(link.members.size());
    shares_.push_back({link.left / static_cast<double>(link.unfixed), seen_links_[i]});
  }
}

void FlowNetwork::visit(FlowId id) {
  Flow& flow = flow_at(id);
  if (flow.visited == round_) return;
  flow.visited = round_;
  capped_.push_back({flow.limit, id});
  for (std::uint32_t hop = 0; hop < flow.path_size; ++hop) {
    if (!is_tight(flow.path[hop])) continue;
    Link& link = link_at(flow.path[hop]);
    if (link.visited == round_) continue;
    link.visited = round_;
    seen_links_.push_back(flow.path[hop]);
  }
}

void FlowNetwork::fill() {
  std::make_heap(shares_.begin(), shares_.end(), more);
  next_capped_ = 0;
  scans_ = 0;
  least_limit_ = 0;
  to_fix_ = static_cast<std::int64_t>(capped_.size());
  double level = 0;
  while (to_fix_ > 0) {
    // Levels only rise; rounding alone could say otherwise.
    level = std::max(level, least_share());
    if (least_limit_ <= level) {
      fix_capped(level);
    } else {
      fix_members(shares_.front().link, level);
    }
  }
}

// The level at which the next link is full, that link first in shares_; infinite if none will be.
double FlowNetwork::least_share() {
  while (!shares_.empty()) {
    const Share share = shares_.front();
    const Link& link = link_at(share.link);
    const double now = link.unfixed > 0 ? link.left / static_cast<double>(link.unfixed) : kInfinity;
    if (now <= share.level) return now;
    std::pop_heap(shares_.begin(), shares_.end(), more);
    if (link.unfixed > 0) {
      shares_.back().level = now;
      std::push_heap(shares_.begin(), shares_.end(), more);
    } else {
      shares_.pop_back();
    }
  }
  return kInfinity;
}

void FlowNetwork::fix(FlowId id, double rate) {
  const Flow& flow = flow_at(id);
  fixed_[static_cast<std::size_t>(id)] = round_;
  --to_fix_;
  for (std::uint32_t hop = 0; hop < flow.path_size; ++hop) {
    if (!is_tight(flow.path[hop])) continue;
    Link& link = link_at(flow.path[hop]);
    link.left -= rate;
    --link.unfixed;
  }
  set_rate(id, rate);
}

// Those whose limit lies at or below the level get it.
void FlowNetwork::fix_capped(double level) {
  if (scans_ < kScansBeforeSort) {
    ++scans_;
    least_limit_ = kInfinity;
    std::size_t kept = 0;
    for (const Capped& capped : capped_) {
      if (is_fixed(capped.flow)) continue;
      if (capped.limit <= level) {
        fix(capped.flow, capped.limit);
      } else {
        least_limit_ = std::min(least_limit_, capped.limit);
        capped_[kept++] = capped;
      }
    }
    capped_.resize(kept);
    if (scans_ == kScansBeforeSort) {
      std::sort(capped_.begin(), capped_.end(),
                [](const Capped& a, const Capped& b) { return a.limit < b.limit; });
    }
    return;
  }
  for (; next_capped_ < capped_.size(); ++next_capped_) {
    const Capped& capped = capped_[next_capped_];
    if (is_fixed(capped.flow)) continue;
    if (capped.limit > level) break;
    fix(capped.flow, capped.limit);
  }
  least_limit_ = next_capped_ < capped_.size() ? capped_[next_capped_].limit : kInfinity;
}

void FlowNetwork::fix_members(LinkId id, double level) {
  for (const Member& member : link_at(id).members) {
    if (!is_fixed(member.flow)) fix(member.flow, level);
  }
}

}  // namespace cp::sim
