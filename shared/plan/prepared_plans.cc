#include "shared/plan/prepared_plans.h"

#include <algorithm>

namespace cp {

PreparedPlans::PreparedPlans(Device& device, LaneId lane, std::size_t most)
    : device_(device), lane_(lane), most_(std::max<std::size_t>(1, most)) {}

PreparedPlan& PreparedPlans::get(const Digest& key, const std::function<const Plan&()>& plan,
                                 const Bindings& bindings) {
  const auto found = std::ranges::find(kept_, key, &Kept::key);
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().prepared;
  }
  const Plan& made = plan();
  // First, so that what it gives back is free for the new one.
  if (kept_.size() >= most_) kept_.pop_back();
  kept_.emplace_front(key, made, device_, bindings, lane_);
  return kept_.front().prepared;
}

}  // namespace cp
