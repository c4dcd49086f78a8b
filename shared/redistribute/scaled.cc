#include "shared/redistribute/scaled.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/redistribute/lower.h"

namespace cp {

void validate_scale(double scale, DType dtype) {
  if (!std::isfinite(scale))
    throw InvalidInput(
        str("a gradient cannot be multiplied by ", scale, "; use a finite factor, for example 1"));
  if (scale != 1 && !is_floating(dtype)) {
    throw InvalidInput(str("a gradient of ", name(dtype), " times ", scale,
                           " would not be exact; use a floating dtype, or no scale (GradScale::none)"));
  }
}

Plan lower_scaled(const Redistribution& redistribution, double scale, Rank self, const Target& target) {
  const Layout &from = redistribution.source, &to = redistribution.target;
  validate_scale(scale, to.dtype);
  if (scale == 1) return lower(redistribution, self, target);
  const auto held = [&](const Layout& layout) {
    return layout.mesh.contains(self) ? local_numel(layout, self) : 0;
  };
  PlanBuilder builder(self, target);
  const StreamId stream = builder.stream("main");
  const BufferId input = builder.input("input", from.dtype, held(from));
  const BufferId output = builder.output("output", to.dtype, held(to));
  append_redistribution(builder, stream, self, redistribution, input, output);
  if (held(to) > 0)
    builder.add(stream, Scale{flat_view(output, 0, held(to)), scale}, std::string(kScaleLabel));
  return std::move(builder).build(Hasher().add(redistribution.inputs).add(scale).digest());
}

std::vector<Plan> lower_all_scaled(const Redistribution& redistribution, double scale, const Target& target) {
  std::set<Rank> ranks(redistribution.source.mesh.ranks().begin(), redistribution.source.mesh.ranks().end());
  ranks.insert(redistribution.target.mesh.ranks().begin(), redistribution.target.mesh.ranks().end());
  std::vector<Plan> plans;
  for (const Rank rank : ranks) plans.push_back(lower_scaled(redistribution, scale, rank, target));
  return plans;
}

double scale_time_us(const Redistribution& redistribution, double scale, const CostModel& cost) {
  // 1 byte / (1e9 bytes/s) = 1e-9 s = 1e-3 us.
  constexpr double kMicrosecondsPerByteAtOneGbps = 1e-3;
  const std::int64_t bytes = max_local_bytes(redistribution.target);
  if (scale == 1 || bytes == 0) return 0;
  return cost.local_latency_us +
         2 * static_cast<double>(bytes) * kMicrosecondsPerByteAtOneGbps / cost.memory_gbps;
}

}  // namespace cp
