// Max-min fair rates by their definition, in as many steps as there are flows: what the network of the
// timeline is judged by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cp::sim {

struct SharingFlow {
  std::vector<std::int32_t> links;  // that it crosses, each once
  double limit = 0;                 // of its own, > 0; may be infinite where it crosses a link
};

// By flow, in the unit of the capacities: all rates rise together until a flow reaches its limit or a link is
// full; those which that holds stay, the others rise on. Time: flows^2 x links.
std::vector<double> fair_rates(std::span<const double> capacities, std::span<const SharingFlow> flows);

}  // namespace cp::sim
