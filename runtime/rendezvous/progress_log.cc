#include "runtime/rendezvous/progress_log.h"

#include <algorithm>
#include <bit>

namespace cp::runtime {

void ProgressLog::set(std::string_view group, std::int64_t sequence, std::string_view operation,
                      const Digest& digest, std::int64_t step) {
  if (sequence < 0) return;
  const std::lock_guard lock(mutex_);
  if (latest_ == nullptr || *latest_name_ != group) {
    auto position = groups_.find(group);
    if (position == groups_.end()) position = groups_.try_emplace(std::string(group)).first;
    latest_name_ = &position->first;
    latest_ = &position->second;
  }
  const auto note = [&](Point& point) {
    point.sequence = sequence;
    point.step = step;
    point.operation.assign(operation);
    point.digest = digest;
  };
  note(latest_->recent[static_cast<std::size_t>(sequence) % kRecent]);
  const auto number = static_cast<std::uint64_t>(sequence);
  const std::size_t level =
      std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(number)), kLevels - 1);
  // The lower ones are among the recent for as long as they matter.
  for (std::size_t i = static_cast<std::size_t>(std::countr_zero(kRecent)); i <= level; ++i)
    note(latest_->levels[i]);
  latest_->last = sequence;
}

std::vector<Progress> ProgressLog::take() {
  const std::lock_guard lock(mutex_);
  std::vector<Progress> taken;
  for (auto& [name, group] : groups_) {
    std::map<std::int64_t, const Point*> points;
    for (const Point& point : group.recent) points.emplace(point.sequence, &point);
    for (const Point& point : group.levels) points.emplace(point.sequence, &point);
    points.erase(points.begin(), points.upper_bound(group.taken));
    for (const auto& [sequence, point] : points)
      taken.push_back({name, sequence, point->operation, point->digest, point->step});
    group.taken = group.last;
  }
  return taken;
}

Progress ProgressLog::latest() const {
  const std::lock_guard lock(mutex_);
  if (latest_ == nullptr) return {};
  const Point& point = latest_->latest();
  return {*latest_name_, point.sequence, point.operation, point.digest, point.step};
}

std::vector<Progress> ProgressLog::latest_of_groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<Progress> all;
  for (const auto& [name, group] : groups_) {
    const Point& point = group.latest();
    all.push_back({name, point.sequence, point.operation, point.digest, point.step});
  }
  return all;
}

}  // namespace cp::runtime
