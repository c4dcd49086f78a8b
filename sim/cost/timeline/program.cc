#include "sim/cost/timeline/program.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

// Chosen: a node and its edges take tens of bytes, so a larger plan would need many gigabytes.
constexpr std::int64_t kMaxNodes = std::int64_t{1} << 27;

}  // namespace

Program::Program(const Plan& plan) : plan_(&plan), steps_(steps_of(plan)) {
  place_steps();
  link_nodes();
}

std::int64_t Program::iteration(NodeId node) const {
  const Place& place = places_[idx(step_id(node))];
  return (node - place.first) / place.body;
}

void Program::place_steps() {
  places_.resize(steps_.size());
  for (std::size_t begin = 0; begin < steps_.size();) {
    const StepRef& front = steps_[begin];
    std::size_t end = begin + 1;
    while (end < steps_.size() && steps_[end].segment == front.segment) ++end;
    const auto body = static_cast<std::int64_t>(end - begin), first = static_cast<std::int64_t>(ids_.size());
    if (front.count > (kMaxNodes - first) / body) {
      throw InvalidInput(str("rank ", plan_->self, ": a Repeat of ", front.count, " x ", body,
                             " steps is more than the ", kMaxNodes,
                             " that can be timed; repeat it less often"));
    }
    for (std::size_t i = begin; i < end; ++i) {
      places_[i] = {static_cast<NodeId>(first + static_cast<std::int64_t>(i - begin)),
                    static_cast<NodeId>(body), front.count, front.segment};
    }
    for (std::int64_t turn = 0; turn < front.count; ++turn) {
      for (std::size_t i = begin; i < end; ++i) ids_.push_back(static_cast<StepId>(i));
    }
    begin = end;
  }
}

void Program::link_nodes() {
  std::vector<std::pair<NodeId, NodeId>> links;  // from, to
  waits_for_.assign(ids_.size(), 0);
  std::vector<NodeId> last_on_stream(plan_->streams.size(), -1);
  const auto link = [&](NodeId from, NodeId to) {
    if (from < 0) return;
    links.emplace_back(from, to);
    ++waits_for_[idx(to)];
  };
  for (NodeId node = 0; node < static_cast<NodeId>(ids_.size()); ++node) {
    const Place& place = places_[idx(step_id(node))];
    const std::int64_t turn = (node - place.first) / place.body;
    link(std::exchange(last_on_stream[idx(step(node).stream)], node), node);
    for (const Edge& edge : step(node).after) {
      const Place& named = places_[idx(edge.step)];
      const bool inside = named.segment == place.segment;
      const std::int64_t named_turn = inside ? turn - edge.iterations_back : named.count - 1;
      if (named_turn >= 0) link(static_cast<NodeId>(named.first + named_turn * named.body), node);
    }
  }
  first_follower_.assign(ids_.size() + 1, 0);
  for (const auto& [from, to] : links) ++first_follower_[idx(from) + 1];
  for (std::size_t i = 1; i < first_follower_.size(); ++i) first_follower_[i] += first_follower_[i - 1];
  followers_.resize(links.size());
  std::vector<std::int64_t> next(first_follower_.begin(), first_follower_.end() - 1);
  for (const auto& [from, to] : links) followers_[idx(next[idx(from)]++)] = to;
}

}  // namespace cp::sim
