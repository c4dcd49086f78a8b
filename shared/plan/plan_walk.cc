#include "shared/plan/plan_walk.h"

namespace cp {

const Step& PlanWalk::step() const {
  const Segment& segment = plan_->segments[segment_];
  const Repeat* repeat = std::get_if<Repeat>(&segment);
  return repeat == nullptr ? std::get<Step>(segment) : repeat->steps[in_body_];
}

void PlanWalk::next() {
  if (const Repeat* repeat = std::get_if<Repeat>(&plan_->segments[segment_])) {
    if (++in_body_ < repeat->steps.size()) return;
    in_body_ = 0;
    if (++iteration_ < repeat->count) return;
    iteration_ = 0;
  }
  leave();
  settle();
}

void PlanWalk::leave() {
  const Repeat* repeat = std::get_if<Repeat>(&plan_->segments[segment_]);
  first_ += repeat == nullptr ? 1 : static_cast<StepId>(repeat->steps.size());
  ++segment_;
}

void PlanWalk::settle() {
  while (!done()) {
    const Repeat* repeat = std::get_if<Repeat>(&plan_->segments[segment_]);
    if (repeat == nullptr || (!repeat->steps.empty() && repeat->count > 0)) return;
    leave();
  }
}

}  // namespace cp
