#include "shared/redistribute/bounds.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/units.h"

namespace cp::detail {
namespace {

// Beyond kWholeUpTo ranks, only areas around kSampledAreas of them are looked at, and none larger than
// kLargestArea. All three are chosen: what is looked at once for each layout then takes some thousand
// look-ups, however many ranks there are. Fewer areas make the bound lower and the search longer; they never
// make it wrong.
constexpr std::int32_t kWholeUpTo = 256;
constexpr std::int32_t kSampledAreas = 16;
constexpr std::size_t kLargestArea = 64;

// Sets of ranks that grow together.
class Joined {
 public:
  explicit Joined(std::int32_t n) : parent_(idx(n)) { std::iota(parent_.begin(), parent_.end(), 0); }
  std::int32_t first(std::int32_t p) {
    while (parent_[idx(p)] != p) p = parent_[idx(p)] = parent_[idx(parent_[idx(p)])];
    return p;
  }
  void join(std::int32_t a, std::int32_t b) {
    const std::int32_t x = first(a), y = first(b);
    parent_[idx(std::max(x, y))] = std::min(x, y);
  }

 private:
  std::vector<std::int32_t> parent_;
};

}  // namespace

Bounds::Bounds(StateSpace& space, const MoveCoster& coster, const CostModel& model)
    : space_(space), coster_(coster), model_(model) {
  split_areas();
}

// The ranks by areas: joined along all axes with a smaller gap, on either mesh, and along the target's
// partial ones. On different meshes both ends of a chain of links may have none of their own, and still be
// near.
std::vector<std::vector<std::int32_t>> Bounds::joined_ranks(double faster) const {
  const std::int32_t n = space_.num_ranks();
  Joined joined(n);
  for (int side = 0; side < space_.num_sides(); ++side) {
    AxisList axes;
    for (const std::int8_t axis : space_.axes(side)) {
      const bool partial = side == space_.target().side && (space_.target().partial >> axis & 1U) != 0;
      if (partial || coster_.axis_gap(side, axis) < faster) axes.push_back(axis);
    }
    for (std::int32_t p = 0; p < n; ++p) {
      if (space_.in_side(side, p)) joined.join(space_.moved_to_first(side, p, axes), p);
    }
  }
  std::vector<std::vector<std::int32_t>> areas;
  std::vector<std::int32_t> number(idx(n), -1);
  for (std::int32_t p = 0; p < n; ++p) {
    std::int32_t& known = number[idx(joined.first(p))];
    if (known < 0) {
      known = static_cast<std::int32_t>(areas.size());
      areas.emplace_back();
    }
    areas[idx(known)].push_back(p);
  }
  return areas;
}

// One representative of the ranks that hold the same part.
std::vector<std::int32_t> Bounds::distinct_holders(const State& state,
                                                   const std::vector<std::int32_t>& ranks) const {
  std::vector<std::pair<std::int64_t, std::int32_t>> held;
  for (const std::int32_t p : ranks) {
    if (space_.in_side(state.side, p)) held.emplace_back(box_number(space_, state, p), p);
  }
  std::sort(held.begin(), held.end());
  std::vector<std::int32_t> distinct;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (i == 0 || held[i].first != held[i - 1].first) distinct.push_back(held[i].second);
  }
  return distinct;
}

Bounds::Area Bounds::area_of(std::vector<std::int32_t> ranks, const Level* before) const {
  Area area{std::move(ranks), {}, 0, {}, 0};
  area.receivers = distinct_holders(space_.target(), area.ranks);
  for (const std::int32_t p : area.receivers) area.distinct += space_.numel(space_.target(), p);
  if (before == nullptr) return area;
  for (std::size_t i = 0; i < before->areas.size(); ++i) {
    if (std::binary_search(area.ranks.begin(), area.ranks.end(), before->areas[i].ranks.front()))
      area.inner.push_back(i);
  }
  return area;
}

void Bounds::split_areas() {
  const std::int32_t n = space_.num_ranks();
  complete_ = n <= kWholeUpTo;
  std::set<double> gaps;
  for (int side = 0; side < space_.num_sides(); ++side) {
    for (const std::int8_t axis : space_.axes(side)) gaps.insert(coster_.axis_gap(side, axis));
  }
  if (space_.num_sides() > 1 || gaps.empty()) gaps.insert(coster_.slowest_gap());
  // Areas of the levels, slowest first: those of the faster ones lie inside, and of the sampled ones all do.
  // A level for each speed of links: its areas are the ranks that are joined by links faster than this one.
  std::vector<std::vector<std::vector<std::int32_t>>> by_level;
  for (const double gap : gaps) {
    by_level.push_back(joined_ranks(gap));
    levels_.push_back({gap, {}});
  }
  // If only some ranks are looked at, they are chosen on the slowest level that has areas small enough; the
  // faster levels then take the areas that lie inside these, so that inner areas are never missing.
  std::vector<bool> sampled(idx(n), complete_);
  for (std::size_t level = by_level.size(); level-- > 0 && !complete_;) {
    const std::size_t count = by_level[level].size();
    const std::size_t stride = std::max<std::size_t>(1, count / kSampledAreas);
    std::vector<bool> chosen(idx(n), false);
    for (std::size_t i = 0; i < count; i += stride) {
      if (by_level[level][i].size() > kLargestArea) continue;
      for (const std::int32_t p : by_level[level][i]) chosen[idx(p)] = true;
    }
    const bool first = std::none_of(sampled.begin(), sampled.end(), [](bool is) { return is; });
    if (first) sampled = chosen;
  }
  for (std::size_t level = 0; level < by_level.size(); ++level) {
    for (std::vector<std::int32_t>& ranks : by_level[level]) {
      const bool taken = complete_ || (ranks.size() <= kLargestArea && sampled[idx(ranks.front())]);
      if (taken)
        levels_[level].areas.push_back(area_of(std::move(ranks), level > 0 ? &levels_[level - 1] : nullptr));
    }
  }
}

// Contributions to each value that lie behind links of at least this gap; `copies`: values per element, which
// are the coordinates along the axes that stay partial.
std::int64_t Bounds::contributions(const State& state, double at_least_gap, std::int64_t& copies) const {
  const AxisMask kept = state.side == space_.target().side ? state.partial & space_.target().partial : 0U;
  std::int64_t contributions = 1;
  copies = 1;
  for (const std::int8_t axis : space_.axes(state.side)) {
    if ((state.partial >> axis & 1U) == 0) continue;
    const int size = space_.axis_size(state.side, axis);
    if ((kept >> axis & 1U) != 0) {
      copies *= size;
    } else if (coster_.axis_gap(state.side, axis) >= at_least_gap) {
      contributions *= size;
    }
  }
  return contributions;
}

// How many elements of what the area's new shards hold together none of its old shards has.
std::int64_t Bounds::outside(const State& state, const BoxPair& boxes, const Area& area,
                             bool arrives_all) const {
  if (arrives_all) return area.distinct;
  if (area.ranks.size() == 1) {
    const std::int32_t rank = area.ranks.front();
    const bool in_both = space_.in_side(state.side, rank) && space_.in_side(space_.target().side, rank);
    return area.distinct - (in_both ? boxes.shared_numel(rank, rank) : 0);
  }
  std::int64_t outside = area.distinct;
  for (const std::int32_t from : distinct_holders(state, area.ranks)) {
    for (const std::int32_t to : area.receivers) outside -= boxes.shared_numel(from, to);
  }
  return outside;
}

// Which part of the area's ranks takes part in what is still to come: on the target's mesh, only its own.
double Bounds::active_part(const State& state, const Area& area) const {
  if (space_.num_sides() == 1 || state.side != space_.target().side) return 1;
  const auto active = std::count_if(area.ranks.begin(), area.ranks.end(),
                                    [&](std::int32_t p) { return space_.in_side(state.side, p); });
  return static_cast<double>(active) / static_cast<double>(area.ranks.size());
}

Bounds::Left Bounds::find(const State& state) {
  if (space_.global_numel() == 0 || space_.equivalent(state, space_.target())) return {};
  const auto num_ranks = static_cast<double>(space_.num_ranks());
  const auto element_bytes = static_cast<double>(coster_.element_bytes());
  const BoxPair boxes = space_.boxes(state, space_.target());
  bool moves = false;
  // Whatever crosses between the areas of a level pays at least its rate; what also crosses those of a slower
  // level, more.
  double mean_us = 0, mean_bytes = 0, largest_bytes = 0, faster_us_per_byte = 0;
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    Level& level = levels_[l];
    // Levels go from fast links to slow ones. A byte that crosses a slow level was counted at the faster ones
    // too, since their areas lie inside; here it pays only what the slow level costs more.
    const double us_per_byte = level.gap / coster_.best_efficiency();
    const double extra_us_per_byte = us_per_byte - faster_us_per_byte;
    std::int64_t copies = 1, distinct = 0, all_outside = 0;
    const std::int64_t reduced = contributions(state, level.gap, copies);
    for (Area& area : level.areas) {
      const std::int64_t missing = outside(state, boxes, area, reduced > 1);
      const auto size = static_cast<double>(area.ranks.size());
      const double bytes = static_cast<double>(missing) * element_bytes / size;
      area.time_us = bytes * extra_us_per_byte;
      for (const std::size_t i : area.inner) {
        const Area& inner = levels_[l - 1].areas[i];
        area.time_us += inner.time_us * static_cast<double>(inner.ranks.size()) / size;
      }
      distinct += area.distinct;
      all_outside += missing;
      moves = moves || missing > 0;
      largest_bytes = std::max(largest_bytes, bytes);
    }
    // Sums: n contributions become one value by n - 1 receives, wherever they meet; each further holder then
    // receives the result. With sampled areas the second part is not known, and left out.
    if (reduced > 1) {
      const std::int64_t values = space_.global_numel() * copies;
      all_outside = (reduced - 1) * values;
      if (complete_ && space_.target().partial == 0)
        all_outside += std::max<std::int64_t>(0, distinct - values);
    } else if (!complete_) {
      all_outside = 0;
    }
    moves = moves || all_outside > 0;
    mean_bytes = std::max(mean_bytes, static_cast<double>(all_outside) * element_bytes / num_ranks);
    mean_us += static_cast<double>(all_outside) * element_bytes / num_ranks * extra_us_per_byte;
    faster_us_per_byte = us_per_byte;
  }
  // At least one step is left, since the state is not the target: it costs its latency even if little moves.
  const double latency_us = moves ? model_.step_latency_us : model_.local_latency_us;
  double most_us = 0;
  for (const Level& level : levels_) {
    for (const Area& area : level.areas)
      most_us = std::max(most_us, area.time_us + latency_us * active_part(state, area));
  }
  if (space_.num_sides() == 1) most_us = std::max(most_us, mean_us + latency_us);
  most_us = std::max(most_us, mean_us);
  // A bound must not exceed the cost that it bounds. The sums of doubles here round differently from those of
  // the moves: by about 2^-53 for each of at most some ten thousand terms, which is 10^-12, so 10^-9 is
  // ample. Bytes of a mean are rounded up to whole ones.
  constexpr double kRounding = 1 - 1e-9;
  return {static_cast<std::int64_t>(most_us * kPsPerUs * kRounding),
          static_cast<std::int64_t>(std::max(mean_bytes, largest_bytes) * kRounding)};
}

}  // namespace cp::detail
