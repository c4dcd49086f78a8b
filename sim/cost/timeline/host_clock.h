// When the host of one rank issues the steps of a plan: one after the other in the plan's order, on all
// streams in turn, and each iteration of a Repeat in the same time (issue_time.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/plan.h"

namespace cp::sim {

class HostClock {
 public:
  // What the host takes for each step of the plan, by StepId.
  HostClock(const Plan& plan, std::span<const double> step_ns);

  // When it begins with an iteration of that segment (0 for a single step).
  double begins_ns(std::int32_t segment, std::int64_t iteration) const {
    const Segment& host = segments_[idx(segment)];
    return host.begin_ns + static_cast<double>(iteration) * host.iteration_ns;
  }
  // When it has issued the step, `step` of that segment, in that iteration.
  double issued_ns(StepId step, std::int32_t segment, std::int64_t iteration) const {
    return begins_ns(segment, iteration) + issued_ns_[idx(step)];
  }

 private:
  struct Segment {
    double begin_ns = 0, iteration_ns = 0;
  };
  std::vector<Segment> segments_;
  std::vector<double> issued_ns_;  // by step, after its iteration's beginning
};

}  // namespace cp::sim
