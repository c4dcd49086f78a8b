// PlanWalk visits the steps of a plan in the order in which they are issued; the body of a Repeat comes again
// in each iteration.
//
//   for (PlanWalk walk(plan); !walk.done(); walk.next()) visit(walk.step(), walk.id(), walk.iteration());
//
// If you want each step once, with the count of its Repeat, use steps_of() (plan.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/plan/plan.h"

namespace cp {

// It keeps its place and allocates nothing, whatever the counts. The plan must outlive it and must not
// change.
class PlanWalk {
 public:
  explicit PlanWalk(const Plan& plan) : plan_(&plan) { settle(); }

  bool done() const { return segment_ == plan_->segments.size(); }
  // These must not be called once it is done.
  const Step& step() const;
  StepId id() const { return first_ + static_cast<StepId>(in_body_); }
  std::int64_t iteration() const { return iteration_; }  // 0 outside of a Repeat
  void next();

 private:
  void leave();   // to the next segment
  void settle();  // past Repeats that issue nothing

  const Plan* plan_;
  std::size_t segment_ = 0, in_body_ = 0;
  StepId first_ = 0;  // of the segment
  std::int64_t iteration_ = 0;
};

}  // namespace cp
