#include "shared/plan/prepared_plans.h"

#include <algorithm>

namespace cp {

PreparedPlans::PreparedPlans(Device& device, LaneId lane, std::size_t most)
    : device_(device), lane_(lane), most_(std::max<std::size_t>(1, most)) {}

bool PreparedPlans::is_latest(const Digest& key) {
  const auto found = std::ranges::find(kept_, key, &Kept::key);
  if (found == kept_.end()) return false;
  kept_.splice(kept_.begin(), kept_, found);
  return true;
}

void PreparedPlans::make_place() {
  if (kept_.size() >= most_) kept_.pop_back();
}

PreparedPlan& PreparedPlans::get(const Digest& key, const std::function<const Plan&()>& plan,
                                 const Bindings& bindings) {
  if (is_latest(key)) return *kept_.front().prepared;
  const Plan& made = plan();
  make_place();  // first, so that what is given back is free for the new one
  kept_.emplace_front(key, made, device_, bindings, lane_);
  return *kept_.front().prepared;
}

void PreparedPlans::pass(const Digest& key) {
  if (is_latest(key)) return;
  make_place();
  kept_.emplace_front(key);
}

}  // namespace cp
