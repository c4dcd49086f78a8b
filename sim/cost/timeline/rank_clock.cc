#include "sim/cost/timeline/rank_clock.h"

#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

void RankClock::advance(double now_ns) {
  const double passed = now_ns - now_ns_;
  now_ns_ = now_ns;
  if (kernels_ > 0) compute_ns_ += passed;
  if (comms_ > 0) (kernels_ > 0 ? hidden_ns_ : exposed_ns_) += passed;
}

void RankClock::settle(RankTimeline& result) const {
  result.compute_ns = compute_ns_;
  result.exposed_comm_ns = exposed_ns_;
  result.hidden_comm_ns = hidden_ns_;
}

}  // namespace cp::sim
