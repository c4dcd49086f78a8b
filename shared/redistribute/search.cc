#include "shared/redistribute/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cp::detail {
namespace {

constexpr double kPicosecondsPerMicrosecond = 1e6;

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

Search::Search(LayoutSpace& space, MoveCoster& coster, const RedistributeOptions& options, bool cast_before,
               bool cast_after, std::vector<double> limits)
    : space_(space),
      coster_(coster),
      options_(options),
      cast_before_(cast_before),
      cast_after_(cast_after),
      limits_(std::move(limits)),
      bounds_(space, coster, options.cost),
      num_ranks_(idx(space.num_ranks())),
      best_primary_(std::numeric_limits<double>::infinity()) {}

std::int32_t Search::state_id(const State& state) {
  const auto [place, added] = state_index_.try_emplace(state, static_cast<std::int32_t>(states_.size()));
  if (added) {
    StateInfo info{state, space_.equivalent(state, space_.target()), {}, {}, {}};
    bounds_.find(state, space_.target(), info.time_left, info.bytes_left);
    for (double& time : info.time_left) time = std::floor(time * kPicosecondsPerMicrosecond);
    states_.push_back(std::move(info));
  }
  return place->second;
}

bool Search::later(std::int32_t a, std::int32_t b) const {
  const Label& x = labels_[idx(a)];
  const Label& y = labels_[idx(b)];
  if (x.primary != y.primary) return x.primary > y.primary;
  if (x.secondary != y.secondary) return x.secondary > y.secondary;
  if (x.steps != y.steps) return x.steps > y.steps;
  return a > b;
}

// Whether some label of the state has spent no more than next_ on every rank.
bool Search::dominated(const StateInfo& info, std::int32_t steps) const {
  return std::any_of(info.labels.begin(), info.labels.end(), [&](std::int32_t known) {
    if (labels_[idx(known)].steps > steps) return false;
    const double* other = spent(known);
    for (std::size_t i = 0; i < 2 * num_ranks_; ++i) {
      if (other[i] > next_[i]) return false;
    }
    return true;
  });
}

void Search::push(Label label) {
  const auto id = static_cast<std::int32_t>(labels_.size());
  StateInfo& info = states_[idx(label.state)];
  std::erase_if(info.labels, [&](std::int32_t known) {
    if (labels_[idx(known)].steps < label.steps) return false;
    const double* other = spent(known);
    for (std::size_t i = 0; i < 2 * num_ranks_; ++i) {
      if (next_[i] > other[i]) return false;
    }
    labels_[idx(known)].superseded = true;
    return true;
  });
  info.labels.push_back(id);
  if (info.is_goal) best_primary_ = std::min(best_primary_, label.primary);
  labels_.push_back(std::move(label));
  spent_.insert(spent_.end(), next_.begin(), next_.end());
  open_.push_back(id);
  std::push_heap(open_.begin(), open_.end(), [this](std::int32_t a, std::int32_t b) { return later(a, b); });
}

// What a chain costs at least whose ranks have spent this much and still have that left.
double Search::finished(const double* spent, const std::vector<double>& left) const {
  double most = 0;
  for (std::size_t p = 0; p < num_ranks_; ++p) most = std::max(most, spent[p] + left[p]);  // the first areas
  for (std::size_t a = num_ranks_; a < left.size(); ++a) {
    const std::vector<std::int32_t>& area = bounds_.areas()[a];
    double sum = 0;
    for (const std::int32_t p : area) sum += spent[p];
    most = std::max(most, sum / static_cast<double>(area.size()) + left[a]);
  }
  return most;
}

void Search::try_move(std::int32_t label, const StateMove& candidate) {
  const std::int32_t to = state_id(candidate.to);
  const bool by_time = options_.objective == Objective::time;
  const double* before = spent(label);
  const StateInfo& info = states_[idx(to)];
  const std::vector<double>& left = by_time ? info.time_left : info.bytes_left;
  const double* primary_before = by_time ? before : before + num_ranks_;
  if (finished(primary_before, left) > best_primary_) return;
  StateMove move = candidate;
  if (info.is_goal && candidate.to.side == space_.target().side) move.to = space_.target();
  coster_.evaluate_quickly(move, quick_time_, quick_bytes_);
  for (std::size_t p = 0; p < num_ranks_; ++p) {
    next_[p] = primary_before[p] +
               (by_time ? std::floor(quick_time_[p] * kPicosecondsPerMicrosecond) : quick_bytes_[p]);
  }
  if (finished(next_.data(), left) > best_primary_) return;
  const bool first = labels_[idx(label)].parent < 0;
  coster_.evaluate(move, {first && !cast_before_, info.is_goal && !cast_after_, first && cast_before_},
                   cost_);
  for (std::size_t p = 0; p < num_ranks_; ++p) {
    if (static_cast<double>(cost_.temporary_bytes[p]) > limits_[p]) return;
    next_[p] = before[p] + std::nearbyint(cost_.time_us[p] * kPicosecondsPerMicrosecond);
    next_[num_ranks_ + p] = before[num_ranks_ + p] + static_cast<double>(cost_.bytes_received[p]);
  }
  const double time = finished(next_.data(), info.time_left);
  const double bytes = finished(next_.data() + num_ranks_, info.bytes_left);
  const double primary = by_time ? time : bytes;
  const std::int32_t steps = labels_[idx(label)].steps + 1;
  if (primary > best_primary_ || dominated(info, steps)) return;
  push({to, label, steps, primary, by_time ? bytes : time, std::move(move)});
}

void Search::expand(std::int32_t label) {
  candidates_.clear();
  const State state = states_[idx(labels_[idx(label)].state)].state;
  list_candidates(space_, state, options_, candidates_);
  // The way straight to the target first: it bounds all others.
  const auto to_goal = [&](const StateMove& move) { return move.to == space_.target(); };
  std::stable_partition(candidates_.begin(), candidates_.end(), to_goal);
  for (const StateMove& move : candidates_) try_move(label, move);
}

std::optional<std::vector<StateMove>> Search::run() {
  next_.assign(2 * num_ranks_, 0);
  quick_time_.assign(num_ranks_, 0);
  quick_bytes_.assign(num_ranks_, 0);
  const std::vector<double> casts_us = coster_.cast_us(cast_before_, cast_after_);
  for (std::size_t p = 0; p < num_ranks_; ++p)
    next_[p] = std::nearbyint(casts_us[p] * kPicosecondsPerMicrosecond);
  const std::int32_t start = state_id(space_.source());
  push({start, -1, 0, 0, 0, {}});
  while (!open_.empty()) {
    std::pop_heap(open_.begin(), open_.end(), [this](std::int32_t a, std::int32_t b) { return later(a, b); });
    std::int32_t label = open_.back();
    open_.pop_back();
    if (labels_[idx(label)].superseded) continue;
    if (!states_[idx(labels_[idx(label)].state)].is_goal) {
      expand(label);
      continue;
    }
    std::vector<StateMove> chain;
    for (; labels_[idx(label)].parent >= 0; label = labels_[idx(label)].parent)
      chain.push_back(labels_[idx(label)].move);
    std::reverse(chain.begin(), chain.end());
    return chain;
  }
  return std::nullopt;
}

}  // namespace cp::detail
