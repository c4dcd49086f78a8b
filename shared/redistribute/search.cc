#include "shared/redistribute/search.h"

#include <algorithm>
#include <utility>

namespace cp::detail {
namespace {

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

// Ranks and pieces that a pass looks at: each takes some tens of nanoseconds, so that a pass ends in a fraction of a
// second. A candidate counts kCandidateEffort for being listed, one that is bounded or costed also its own ranks and
// pieces.
constexpr std::int64_t kEffortTowardsTarget = 1 << 21;
constexpr std::int64_t kEffortOfAll = 1 << 18;
constexpr std::int64_t kCandidateEffort = 8;
// While no chain is known that keeps the limits, a pass looks for one up to this many times longer.
constexpr std::int64_t kPatience = 3;
// An exchange of more pieces is passed over where there is another way.
constexpr std::int64_t kMostPieces = 1 << 21;

constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();

}  // namespace

bool Search::later(std::int32_t a, std::int32_t b) const {
  const Label& x = labels_[idx(a)];
  const Label& y = labels_[idx(b)];
  if (x.finished != y.finished) return x.finished > y.finished;
  return a > b;
}

// The chain that ends in this label, which is a goal.
void Search::keep(std::int32_t label) {
  if (best_ && best_->cost <= labels_[idx(label)].spent) return;
  Chain chain{{}, labels_[idx(label)].spent};
  for (; labels_[idx(label)].parent >= 0; label = labels_[idx(label)].parent) {
    const Label& at = labels_[idx(label)];
    chain.moves.push_back(graph_.move(labels_[idx(at.parent)].node, *at.edge));
  }
  std::reverse(chain.moves.begin(), chain.moves.end());
  best_ = std::move(chain);
}

void Search::push(Label label) {
  const auto id = static_cast<std::int32_t>(labels_.size());
  if (best_label_.size() < graph_.num_nodes()) best_label_.resize(graph_.num_nodes(), -1);
  std::int32_t& known = best_label_[idx(label.node)];
  if (known >= 0) {
    if (labels_[idx(known)].spent <= label.spent) return;
    labels_[idx(known)].superseded = true;
  }
  known = id;
  const bool is_goal = graph_.node(label.node).is_goal;
  labels_.push_back(label);
  if (is_goal) return keep(id);
  open_.push_back(id);
  std::push_heap(open_.begin(), open_.end(), [this](std::int32_t a, std::int32_t b) { return later(a, b); });
}

void Search::try_edge(std::int32_t label, LayoutGraph::Edge& edge, const Limits& limits) {
  const std::int32_t from = labels_[idx(label)].node;
  const ChainCost spent = labels_[idx(label)].spent;
  const auto at_most_best = [&](std::int64_t primary) { return !best_ || primary <= best_->cost.primary; };
  if (!at_most_best(spent.primary + cost_of(graph_.least_ps(edge), 0, 1).primary)) return;
  const std::int32_t to = graph_.target_of(edge);
  const Bounds::Left left = graph_.node(to).left;
  const ChainCost left_cost = cost_of(left.time_ps, left.bytes_received, 0);
  if (!at_most_best(spent.primary + left_cost.primary)) return;
  if (to < static_cast<std::int32_t>(best_label_.size()) && best_label_[idx(to)] >= 0 &&
      labels_[idx(best_label_[idx(to)])].spent.primary < spent.primary)
    return;
  if (!edge.cost) {
    const MoveCoster::AtLeast& least = graph_.at_least(from, edge);
    const ChainCost least_cost = cost_of(least.time_ps, least.bytes_received, 1);
    const std::int64_t primary = spent.primary + least_cost.primary + left_cost.primary;
    if (!at_most_best(primary)) return;
    const std::int64_t effort = graph_.effort(from, edge, kMostPieces);
    if (best_ && (effort >= kMostPieces || effort > effort_left_)) {
      least_passed_over_ = std::min(least_passed_over_, primary);
      return;
    }
    effort_left_ -= effort;
  }
  const MoveCost& cost = graph_.cost(from, edge);
  if (static_cast<double>(cost.temporary_bytes) > limits.temporary_bytes ||
      static_cast<double>(cost.peak_bytes) > limits.peak_bytes)
    return;
  const ChainCost step = cost_of(cost.time_ps, cost.bytes_received, 1);
  Label next{to, label, spent, spent, &edge, false};
  next.spent = {spent.primary + step.primary, spent.secondary + step.secondary, spent.steps + 1};
  next.finished = {next.spent.primary + left_cost.primary, next.spent.secondary + left_cost.secondary,
                   next.spent.steps};
  if (!at_most_best(next.finished.primary)) return;
  push(next);
}

void Search::expand(std::int32_t label, const Limits& limits, Breadth breadth) {
  std::vector<LayoutGraph::Edge>& edges = graph_.edges(labels_[idx(label)].node, breadth);
  effort_left_ -= kCandidateEffort * static_cast<std::int64_t>(edges.size());
  for (LayoutGraph::Edge& edge : edges) try_edge(label, edge, limits);
}

void Search::pass(const Limits& limits, Breadth breadth, std::int64_t effort) {
  labels_.clear();
  best_label_.assign(graph_.num_nodes(), -1);
  open_.clear();
  effort_left_ = effort;
  const Bounds::Left left = graph_.node(graph_.source()).left;
  const ChainCost left_cost = cost_of(left.time_ps, left.bytes_received, 0);
  Label start{graph_.source(), -1, cost_of(cast_ps_, 0, 0), {}, nullptr, false};
  start.finished = {start.spent.primary + left_cost.primary, start.spent.secondary + left_cost.secondary, 0};
  push(start);
  while (!open_.empty()) {
    std::pop_heap(open_.begin(), open_.end(), [this](std::int32_t a, std::int32_t b) { return later(a, b); });
    const std::int32_t label = open_.back();
    open_.pop_back();
    if (labels_[idx(label)].superseded) continue;
    if (best_ && labels_[idx(label)].finished >= best_->cost) return;
    if (effort_left_ <= (best_ ? 0 : -kPatience * effort)) {
      least_passed_over_ = std::min(least_passed_over_, labels_[idx(label)].finished.primary);
      return;
    }
    expand(label, limits, breadth);
  }
}

Search::Answer Search::run(const Limits& limits) {
  best_.reset();
  least_passed_over_ = kNothing;
  const Bounds::Left left = graph_.node(graph_.source()).left;
  const std::int64_t least = cost_of(cast_ps_ + left.time_ps, left.bytes_received, 0).primary;
  pass(limits, Breadth::towards_target, kEffortTowardsTarget);
  if (best_ && best_->cost.primary <= least) return {best_, best_->cost.primary};
  if (best_ && !try_all_moves_) return {best_, least};
  least_passed_over_ = kNothing;
  pass(limits, Breadth::all, kEffortOfAll);
  if (!best_) return {std::nullopt, kNothing};
  return {best_, std::max(least, std::min(least_passed_over_, best_->cost.primary))};
}

}  // namespace cp::detail
