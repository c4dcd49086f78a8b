#include "sim/cost/timeline/host_clock.h"

#include <variant>

namespace cp::sim {

HostClock::HostClock(const Plan& plan, std::span<const double> step_ns)
    : segments_(plan.segments.size()), issued_ns_(step_ns.size()) {
  for (const StepRef& ref : steps_of(plan)) {
    double& iteration_ns = segments_[idx(ref.segment)].iteration_ns;
    iteration_ns += step_ns[idx(ref.id)];
    issued_ns_[idx(ref.id)] = iteration_ns;
  }
  for (std::size_t s = 1; s < segments_.size(); ++s) {
    const auto* repeat = std::get_if<Repeat>(&plan.segments[s - 1]);
    const std::int64_t iterations = repeat == nullptr ? 1 : repeat->count;
    const Segment& before = segments_[s - 1];
    segments_[s].begin_ns = before.begin_ns + static_cast<double>(iterations) * before.iteration_ns;
  }
}

}  // namespace cp::sim
