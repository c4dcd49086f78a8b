#include "shared/redistribute/chain_search.h"

#include <algorithm>
#include <utility>

#include "shared/base/index.h"

namespace cp::detail {
namespace {

// How many ranks and pieces a pass may look at. Each takes some tens of nanoseconds, so that 2^21 of them are
// about a tenth of a second. A candidate counts kCandidateEffort for being listed; one that is bounded or
// costed also counts its own ranks and pieces. The two limits are chosen for a search that a user does not
// wait for; with larger ones more answers of wide requests are proven to be the best, later. Effort is
// counted, not timed, so that the answer is the same on every machine.
constexpr std::int64_t kEffortTowardsTarget = 1 << 21;
constexpr std::int64_t kEffortOfAll = 1 << 18;
constexpr std::int64_t kCandidateEffort = 8;
// As long as no chain is known that keeps the limits, a pass goes on for up to this many times its effort.
constexpr std::int64_t kPatience = 1;
// An exchange of more pieces than this is passed over if there is another way. Chosen: a quarter of the whole
// effort of a pass.
constexpr std::int64_t kMostPieces = 1 << 19;

// The most moves of a chain that is followed to its end at once: each axis can be spread, moved and gathered
// once.
constexpr int kDeepest = 3 * kMaxMeshAxes;

// With more ranks than kManyRanks, chains of at most kShortChain collectives are tried first, because the
// search would spend its effort before it comes to the end of any. Chosen on requests of 4,096 ranks: a sum
// over eight of twelve axes then takes 337 us instead of 5,592 in the cost model.
constexpr int kManyRanks = 256;
constexpr int kShortChain = 3;

constexpr std::int64_t kNothing = std::numeric_limits<std::int64_t>::max();

}  // namespace

ChainCost ChainSearch::and_then(const ChainCost& spent, std::int64_t time_ps, std::int64_t wire_bytes,
                                std::int64_t wire_bytes_total, std::int64_t peak_bytes) const {
  if (objective_ == Objective::time)
    return {spent.primary + time_ps, spent.secondary + wire_bytes, 0, 0, spent.steps + 1};
  return {spent.primary + wire_bytes, spent.secondary + wire_bytes_total,
          std::max(spent.tertiary, peak_bytes), spent.last + time_ps, spent.steps + 1};
}

bool ChainSearch::later(std::int32_t a, std::int32_t b) const {
  const Label& x = labels_[idx(a)];
  const Label& y = labels_[idx(b)];
  if (x.finished != y.finished) return x.finished > y.finished;
  return a > b;
}

// The chain that ends in this label, which is a goal.
void ChainSearch::keep(std::int32_t label) {
  if (best_ && best_->cost <= labels_[idx(label)].spent) return;
  Chain chain{{}, labels_[idx(label)].spent};
  for (; labels_[idx(label)].parent >= 0; label = labels_[idx(label)].parent) {
    const Label& at = labels_[idx(label)];
    chain.moves.push_back(graph_.move(labels_[idx(at.parent)].node, *at.edge));
  }
  std::reverse(chain.moves.begin(), chain.moves.end());
  best_ = std::move(chain);
}

void ChainSearch::open(std::int32_t label) {
  open_.push_back(label);
  std::push_heap(open_.begin(), open_.end(), [this](std::int32_t a, std::int32_t b) { return later(a, b); });
}

void ChainSearch::push(Label label) {
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
  open(id);
}

ChainCost ChainSearch::finished(const ChainCost& spent, std::int32_t node) const {
  const LayoutGraph::Node& at = graph_.node(node);
  ChainCost cost = and_then(spent, at.left.time_ps, at.left.bytes_received, 0, 0);
  if (at.is_goal) cost.steps = spent.steps;
  return cost;
}

void ChainSearch::try_edge(std::int32_t label, LayoutGraph::Edge& edge, const Limits& limits) {
  const std::int32_t from = labels_[idx(label)].node;
  const ChainCost spent = labels_[idx(label)].spent;
  if (hopeless(spent.primary + primary(graph_.least_ps(edge), 0))) return;
  const std::int32_t to = graph_.target_of(edge);
  const Bounds::Left left = graph_.node(to).left;
  if (hopeless(spent.primary + primary(left.time_ps, left.bytes_received))) return;
  if (to < static_cast<std::int32_t>(best_label_.size()) && best_label_[idx(to)] >= 0 &&
      labels_[idx(best_label_[idx(to)])].spent.primary < spent.primary)
    return;
  if (!edge.cost) {
    const MoveCoster::AtLeast& least = graph_.at_least(from, edge);
    const ChainCost at_least = finished(and_then(spent, least.time_ps, least.bytes_received, 0, 0), to);
    if (hopeless(at_least.primary)) return;
    const bool lists_pieces = edge.kind == MoveKind::exchange || edge.kind == MoveKind::reduce_exchange;
    if (lists_pieces) {
      labels_.push_back({to, label, spent, at_least, &edge, false, false, true});
      return open(static_cast<std::int32_t>(labels_.size()) - 1);
    }
  }
  follow(label, edge, limits);
}

void ChainSearch::follow(std::int32_t label, LayoutGraph::Edge& edge, const Limits& limits) {
  const std::int32_t from = labels_[idx(label)].node, to = edge.node;
  const ChainCost spent = labels_[idx(label)].spent;
  const std::int64_t effort = graph_.effort(from, edge, kMostPieces);
  if (best_ && (effort >= kMostPieces || effort > effort_left_)) {
    const MoveCoster::AtLeast& least = graph_.at_least(from, edge);
    const ChainCost at_least = finished(and_then(spent, least.time_ps, least.bytes_received, 0, 0), to);
    least_passed_over_ = std::min(least_passed_over_, at_least.primary);
    return;
  }
  effort_left_ -= effort;
  const MoveCost& cost = graph_.cost(from, edge);
  if (static_cast<double>(cost.temporary_bytes) > limits.temporary_bytes ||
      static_cast<double>(cost.peak_bytes) > limits.peak_bytes)
    return;
  const ChainCost next = and_then(spent, cost.time_ps, cost.wire_bytes_received,
                                  cost.wire_bytes_received_total, cost.peak_bytes);
  const ChainCost whole = finished(next, to);
  if (best_ && whole >= best_->cost) return;
  push({to, label, next, whole, &edge, false, false, false});
}

void ChainSearch::expand(std::int32_t label, const Limits& limits, Breadth breadth) {
  std::vector<LayoutGraph::Edge>& edges = graph_.edges(labels_[idx(label)].node, breadth);
  effort_left_ -= kCandidateEffort * static_cast<std::int64_t>(edges.size());
  for (LayoutGraph::Edge& edge : edges) try_edge(label, edge, limits);
}

// From a label to the target by one move, or by one after which nothing is left to receive and a local one.
void ChainSearch::finish(std::int32_t label, const Limits& limits) {
  const std::int32_t from = labels_[idx(label)].node;
  for (LayoutGraph::Edge& edge : graph_.edges(from, Breadth::towards_target)) {
    if (hopeless(labels_[idx(label)].spent.primary + primary(graph_.least_ps(edge), 0))) continue;
    const LayoutGraph::Node& to = graph_.node(graph_.target_of(edge));
    if (to.left.bytes_received > 0) continue;
    const bool is_goal = to.is_goal;
    follow(label, edge, limits);
    if (is_goal || edge.node >= static_cast<std::int32_t>(best_label_.size())) continue;
    const std::int32_t next = best_label_[idx(edge.node)];
    if (next < 0) continue;
    for (LayoutGraph::Edge& last : graph_.edges(edge.node, Breadth::towards_target)) {
      if (last.kind != MoveKind::to_partial || !graph_.node(graph_.target_of(last)).is_goal) continue;
      follow(next, last, limits);
    }
  }
}

// Chains that are known before any is followed step by step: where no move leads straight to the target, or
// where there are many ranks, whose search would spend its effort before it comes to the end of a chain. Of
// the collectives from the layouts at hand the most promising ones are kept, and from each the target is
// tried, some times over.
void ChainSearch::try_short_chains(const Limits& limits) {
  // Chosen: the best two of each depth, so that the effort grows with the depth and not as its power.
  constexpr std::size_t kKept = 2;
  const std::int32_t source = graph_.source();
  std::vector<LayoutGraph::Edge>& edges = graph_.edges(source, Breadth::towards_target);
  const bool is_direct = std::any_of(edges.begin(), edges.end(), [&](LayoutGraph::Edge& edge) {
    return graph_.node(graph_.target_of(edge)).is_goal;
  });
  if (is_direct && graph_.num_ranks() <= kManyRanks) return;
  finish(0, limits);
  // If there is something to reduce, the first collective must reduce all of it: sums are smaller than their
  // parts, so whatever follows moves less.
  const bool reduces = graph_.node(source).state.partial != 0;
  std::vector<std::int32_t> from = {0};
  for (int depth = 0; depth < kShortChain; ++depth) {
    std::vector<std::int32_t> next;
    for (const std::int32_t label : from) {
      for (LayoutGraph::Edge& edge : graph_.edges(labels_[idx(label)].node, Breadth::towards_target)) {
        if (!is_equal_count(edge.kind)) continue;
        if (reduces && depth == 0 && (edge.to.partial & graph_.node(source).state.partial) != 0) continue;
        const std::size_t known = labels_.size();
        graph_.target_of(edge);
        follow(label, edge, limits);
        if (labels_.size() > known && !graph_.node(edge.node).is_goal)
          next.push_back(static_cast<std::int32_t>(known));
      }
    }
    std::sort(next.begin(), next.end(), [this](std::int32_t a, std::int32_t b) { return later(b, a); });
    if (next.size() > kKept) next.resize(kKept);
    for (const std::int32_t label : next) finish(label, limits);
    from = std::move(next);
  }
}

void ChainSearch::pass(const Limits& limits, Breadth breadth, std::int64_t effort, Patience patience) {
  labels_.clear();
  best_label_.assign(graph_.num_nodes(), -1);
  open_.clear();
  effort_left_ = effort;
  Label start{graph_.source(), -1,   and_then({0, 0, 0, 0, -1}, cast_ps_, 0, 0, 0), {}, nullptr, false,
              false,           false};
  start.finished = start.spent;
  push(start);
  if (breadth == Breadth::towards_target && !best_ && patience != Patience::none) try_short_chains(limits);
  bool any_chain = false;  // the effort is spent: from here on the first chain is the answer
  while (!open_.empty()) {
    // The label whose chain may become the cheapest comes first. If even this one cannot beat the best chain,
    // none can.
    std::pop_heap(open_.begin(), open_.end(), [this](std::int32_t a, std::int32_t b) { return later(a, b); });
    const std::int32_t label = open_.back();
    open_.pop_back();
    if (labels_[idx(label)].superseded || labels_[idx(label)].expanded) continue;
    if (best_ && labels_[idx(label)].finished >= best_->cost) return;
    if (effort_left_ <= (best_ || patience == Patience::none ? 0 : -kPatience * effort)) {
      least_passed_over_ = std::min(least_passed_over_, labels_[idx(label)].finished.primary);
      if (best_ || patience != Patience::endless) return;
      any_chain = true;
    }
    // Its own edge was only bounded so far: now that it is the most promising, the cost is worth the effort.
    if (labels_[idx(label)].is_bound && !any_chain) {
      follow(labels_[idx(label)].parent, *labels_[idx(label)].edge, limits);
      continue;
    }
    // From each label straight on with the most promising of what follows it, since good chains that are
    // known early spare looking at most others.
    std::int32_t next = label;
    for (int depth = 0; next >= 0 && depth < kDeepest; ++depth) {
      const std::size_t first = labels_.size();
      labels_[idx(next)].expanded = true;
      if (labels_[idx(next)].is_bound) {
        follow(labels_[idx(next)].parent, *labels_[idx(next)].edge, limits);
      } else {
        expand(next, limits, breadth);
      }
      const bool goes_on = any_chain ? !best_ : breadth == Breadth::towards_target && effort_left_ > 0;
      next = goes_on ? best_since(first, any_chain) : -1;
    }
  }
}

// The most promising label behind the first ones that is not a goal; nor a bound, unless those count too.
std::int32_t ChainSearch::best_since(std::size_t first, bool with_bounds) const {
  std::int32_t best = -1;
  for (std::size_t i = first; i < labels_.size(); ++i) {
    const Label& label = labels_[i];
    if (label.superseded || (label.is_bound && !with_bounds)) continue;
    if (!label.is_bound && graph_.node(label.node).is_goal) continue;
    if (best_ && label.finished >= best_->cost) continue;
    if (best < 0 || label.finished < labels_[idx(best)].finished) best = static_cast<std::int32_t>(i);
  }
  return best;
}

ChainSearch::Answer ChainSearch::run(const Limits& limits, double share, Patience patience) {
  best_.reset();
  least_passed_over_ = kNothing;
  const Bounds::Left left = graph_.node(graph_.source()).left;
  const std::int64_t least = primary(cast_ps_ + left.time_ps, left.bytes_received);
  // First the moves that source and target suggest: few, and they usually hold the best chain. If its cost
  // equals the bound, nothing can be better. Otherwise all moves are tried, if there are few enough layouts;
  // the chain found so far then prunes most of them.
  pass(limits, Breadth::towards_target, static_cast<std::int64_t>(share * kEffortTowardsTarget), patience);
  if (best_ && best_->cost.primary <= least) return {best_, best_->cost.primary};
  if (!try_all_moves_) return {best_, best_ ? least : kNothing};
  least_passed_over_ = kNothing;
  pass(limits, Breadth::all, static_cast<std::int64_t>(share * kEffortOfAll), patience);
  // Whatever this pass did not follow costs at least least_passed_over_: no chain is cheaper than this, or
  // than the best one itself.
  if (!best_) return {std::nullopt, kNothing};
  return {best_, std::max(least, std::min(least_passed_over_, best_->cost.primary))};
}

}  // namespace cp::detail
