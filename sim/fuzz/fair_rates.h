// Computes max-min fair rates by their definition, in as many steps as there are flows. The network of the
// timeline is judged by them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cp::sim {

struct SharingFlow {
  std::vector<std::int32_t> links;  // the links that it crosses, by index; each comes once
  double limit = 0;                 // its own limit, > 0; may be infinite if it crosses a link
};

// The rate of each flow, in the unit of the capacities. All rates rise together until a flow reaches its
// limit or a link is full. The flows that this holds back keep their rates, and the others rise on. Time:
// flows^2 x links.
std::vector<double> fair_rates(std::span<const double> capacities, std::span<const SharingFlow> flows);

}  // namespace cp::sim
