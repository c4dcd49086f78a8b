// The steps of a plan in the order in which they are issued, the body of a Repeat again in each of its
// iterations.
//
//   for (PlanWalk walk(plan); !walk.done(); walk.next()) visit(walk.step(), walk.id(), walk.iteration());
//
// Where one pass over the text of a plan is wanted, a Repeat's body once, steps_of() (plan.h) gives it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/plan/plan.h"

namespace cp {

// Keeps its place alone: no memory, whatever the counts. The plan must outlive it and stay as it is.
class PlanWalk {
 public:
  explicit PlanWalk(const Plan& plan) : plan_(&plan) { settle(); }

  bool done() const { return segment_ == plan_->segments.size(); }
  // Not once it is done:
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
