#include "shared/redistribute/bounds.h"

#include <algorithm>
#include <set>
#include <utility>

namespace cp::detail {
namespace {

std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

unsigned kept_axes(const State& state, const State& target) {
  return state.side == target.side ? static_cast<unsigned>(state.partial & target.partial) : 0U;
}

// One representative of the ranks of the area that hold the same part of the same values.
std::vector<std::int32_t> distinct_holders(const LayoutSpace& space, const State& state, unsigned kept,
                                           const std::vector<std::int32_t>& area) {
  std::vector<std::pair<std::int64_t, std::int32_t>> held;
  for (const std::int32_t p : area) {
    if (space.in_side(state.side, p)) {
      held.emplace_back(
          box_number(space, state, p) * space.num_ranks() + partial_coordinates(space, state, p, kept), p);
    }
  }
  std::sort(held.begin(), held.end());
  std::vector<std::int32_t> distinct;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (i == 0 || held[i].first != held[i - 1].first) distinct.push_back(held[i].second);
  }
  return distinct;
}

}  // namespace

Bounds::Bounds(LayoutSpace& space, const MoveCoster& coster, const CostModel& model)
    : space_(space), coster_(coster), model_(model) {
  split_areas();
}

void Bounds::split_areas() {
  const std::int32_t n = space_.num_ranks();
  std::set<double> gaps;
  for (std::int32_t b = 1; b < n; ++b) {
    for (std::int32_t a = 0; a < b; ++a) gaps.insert(coster_.gap(a, b));
  }
  if (gaps.empty()) gaps.insert(0);
  std::vector<std::int32_t> everybody;
  for (std::int32_t p = 0; p < n; ++p) everybody.push_back(p);
  double faster = 0;
  for (const double gap : gaps) {
    Level level{gap / coster_.best_efficiency(), areas_.size(), 0, 0};
    std::vector<bool> placed(idx(n), false);
    for (std::int32_t p = 0; p < n; ++p) {
      if (placed[idx(p)]) continue;
      std::vector<std::int32_t> area = {p};
      placed[idx(p)] = true;
      // Over links that may be on different meshes, so that both ends of a chain of them may have none.
      for (std::size_t i = 0; i < area.size() && faster > 0; ++i) {
        for (std::int32_t q = p + 1; q < n; ++q) {
          if (placed[idx(q)] || coster_.gap(area[i], q) > faster) continue;
          area.push_back(q);
          placed[idx(q)] = true;
        }
      }
      areas_.push_back(std::move(area));
    }
    level.end_area = areas_.size();
    level.all_ranks = areas_.size();
    areas_.push_back(everybody);
    levels_.push_back(level);
    faster = gap;
  }
}

// Contributions that lie behind links of at least this gap.
Bounds::Reduction Bounds::reduction(const State& state, const State& target, double slower_than) const {
  Reduction reduction;
  const unsigned kept = kept_axes(state, target);
  for (const std::int8_t axis : space_.axes(state.side)) {
    if ((state.partial >> axis & 1) == 0) continue;
    const int size = space_.axis_size(state.side, axis);
    if ((kept >> axis & 1U) != 0) {
      reduction.copies *= size;
    } else if (coster_.axis_gap(state.side, axis) >= slower_than) {
      reduction.contributions *= size;
    }
  }
  return reduction;
}

const std::vector<std::int32_t>& Bounds::receivers(const State& target, unsigned kept, std::size_t area) {
  if (receivers_kept_ != kept) {
    receivers_.assign(areas_.size(), {});
    receivers_kept_ = kept;
  }
  std::vector<std::int32_t>& found = receivers_[area];
  if (found.empty()) found = distinct_holders(space_, target, kept, areas_[area]);
  return found;
}

// What the area's new shards hold together, and how much of that none of its old shards has.
Bounds::Need Bounds::needed(const State& state, const State& target, const BoxPair& boxes, std::size_t area,
                            bool arrives_all) {
  Need need;
  if (areas_[area].size() == 1) {
    const std::int32_t rank = areas_[area].front();
    if (!space_.in_side(target.side, rank)) return need;
    need.distinct = need.outside = space_.numel(target, rank);
    if (!arrives_all && space_.in_side(state.side, rank)) need.outside -= boxes.shared_numel(rank, rank);
    return need;
  }
  const unsigned kept = kept_axes(state, target);
  const std::vector<std::int32_t>& to_ranks = receivers(target, kept, area);
  for (const std::int32_t to : to_ranks) need.distinct += space_.numel(target, to);
  need.outside = need.distinct;
  if (arrives_all) return need;
  for (const std::int32_t from : distinct_holders(space_, state, kept, areas_[area])) {
    for (const std::int32_t to : to_ranks) {
      const bool same_values = kept == 0 || partial_coordinates(space_, state, from, kept) ==
                                                partial_coordinates(space_, state, to, kept);
      if (same_values) need.outside -= boxes.shared_numel(from, to);
    }
  }
  return need;
}

// Which part of the area's ranks takes part in what is still to come: on the target's mesh, only its own.
double Bounds::active_part(const State& state, const State& target, std::size_t area) const {
  if (space_.num_sides() == 1 || state.side != target.side) return 1;
  const std::vector<std::int32_t>& ranks = areas_[area];
  const auto active = std::count_if(ranks.begin(), ranks.end(),
                                    [&](std::int32_t p) { return space_.in_side(target.side, p); });
  return static_cast<double>(active) / static_cast<double>(ranks.size());
}

void Bounds::find(const State& state, const State& target, std::vector<double>& time_us,
                  std::vector<double>& bytes) {
  time_us.assign(areas_.size(), 0);
  bytes.assign(areas_.size(), 0);
  if (space_.equivalent(state, target)) return;
  const auto num_ranks = static_cast<double>(space_.num_ranks());
  const BoxPair boxes = space_.boxes(state, target);
  bool moves = false;
  // Whatever crosses between the areas of a level pays at least its rate; what also crosses those of a slower level, more.
  std::vector<double> rank_us(idx(space_.num_ranks()), 0);
  double mean_us = 0, faster_us_per_byte = 0;
  for (const Level& level : levels_) {
    const double extra_us_per_byte = level.us_per_byte - faster_us_per_byte;
    const Reduction reduces = reduction(state, target, level.us_per_byte * coster_.best_efficiency());
    std::int64_t distinct = 0, outside = 0;
    for (std::size_t a = level.first_area; a < level.end_area; ++a) {
      const std::vector<std::int32_t>& area = areas_[a];
      const Need need = needed(state, target, boxes, a, reduces.contributions > 1);
      distinct += need.distinct;
      outside += need.outside;
      bytes[a] =
          static_cast<double>(need.outside * coster_.element_bytes()) / static_cast<double>(area.size());
      double sum_us = 0;
      for (const std::int32_t p : area) sum_us += rank_us[idx(p)];
      time_us[a] = sum_us / static_cast<double>(area.size()) + bytes[a] * extra_us_per_byte;
      for (const std::int32_t p : area) rank_us[idx(p)] = time_us[a];
    }
    if (reduces.contributions > 1) {
      const std::int64_t values = space_.global_numel() * reduces.copies;
      outside = (reduces.contributions - 1) * values + std::max<std::int64_t>(0, distinct - values);
    }
    moves = moves || outside > 0;
    bytes[level.all_ranks] = static_cast<double>(outside * coster_.element_bytes()) / num_ranks;
    mean_us += bytes[level.all_ranks] * extra_us_per_byte;
    time_us[level.all_ranks] = mean_us;
    faster_us_per_byte = level.us_per_byte;
  }
  const double latency_us = moves ? model_.step_latency_us : model_.local_latency_us;
  for (std::size_t a = 0; a < areas_.size(); ++a) time_us[a] += latency_us * active_part(state, target, a);
}

}  // namespace cp::detail
