// Flows over links: few links, so that flows meet, and limits below, at and above the shares that links give.
#include <algorithm>
#include <array>
#include <vector>

#include "sim/fuzz/draw.h"

namespace cp::sim {

proto::Flows draw_flows(Numbers& numbers, const Swarm& swarm) {
  // Capacities, limits and bytes. Chosen: small numbers without common factors, whose shares are no round
  // numbers, and three scales, so that some links are full long before others.
  constexpr std::array<double, 7> kSizes = {1, 2, 3, 7, 10, 50, 450};
  proto::Flows drawn;
  const std::int64_t links = numbers.in(1, swarm.take(numbers, "links.many") ? 6 : 2);
  for (std::int64_t link = 0; link < links; ++link) drawn.add_capacities(numbers.of(kSizes));
  const std::int64_t flows = numbers.in(1, swarm.take(numbers, "flows.many") ? 20 : 4);
  double begin_ns = 0;
  for (std::int64_t i = 0; i < flows; ++i) {
    proto::Flows::Flow& flow = *drawn.add_flows();
    std::vector<std::int32_t> path;
    for (std::int32_t link = 0; link < links; ++link) path.push_back(link);
    numbers.shuffle(path);
    const bool none = swarm.take(numbers, "flows.no_link");
    path.resize(none ? 0 : static_cast<std::size_t>(numbers.in(1, std::min<std::int64_t>(links, 4))));
    flow.mutable_links()->Add(path.begin(), path.end());
    flow.set_bytes(numbers.of(kSizes) * static_cast<double>(numbers.in(1, 100)));
    if (none || swarm.take(numbers, "flows.limit"))
      flow.set_limit(numbers.of(kSizes) / static_cast<double>(numbers.in(1, 8)));
    if (i > 0 && swarm.take(numbers, "flows.later")) begin_ns += static_cast<double>(numbers.in(0, 20));
    flow.set_begin_ns(begin_ns);
    if (!swarm.take(numbers, "flows.change")) continue;
    flow.set_change_ns(begin_ns + static_cast<double>(numbers.in(1, 20)));
    flow.set_then_limit(numbers.of(kSizes) / static_cast<double>(numbers.in(1, 8)));
  }
  return drawn;
}

}  // namespace cp::sim
