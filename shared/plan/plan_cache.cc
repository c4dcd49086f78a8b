#include "shared/plan/plan_cache.h"

#include <algorithm>

namespace cp {

PlanCache::PlanCache(std::size_t most, std::function<void(const Plan&)> first_use)
    : most_(std::max<std::size_t>(2, most)), first_use_(std::move(first_use)) {}

const Plan& PlanCache::get(const Digest& key, const std::function<Plan()>& make) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    plans_.splice(plans_.begin(), plans_, found->second);
    return found->second->second;
  }
  Plan plan = make();
  if (first_use_) first_use_(plan);
  plans_.emplace_front(key, std::move(plan));
  by_key_[key] = plans_.begin();
  if (plans_.size() > most_) {
    by_key_.erase(plans_.back().first);
    plans_.pop_back();
  }
  return plans_.front().second;
}

}  // namespace cp
