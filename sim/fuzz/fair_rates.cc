#include "sim/fuzz/fair_rates.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cp::sim {
namespace {

// A link is full when less than this part of its capacity is left. It covers the rounding of sums and
// differences of at most a few hundred numbers: 256 * 2^-53 is 3e-14.
constexpr double kFull = 1e-12;

bool crosses(const SharingFlow& flow, std::size_t link) {
  return std::find(flow.links.begin(), flow.links.end(), static_cast<std::int32_t>(link)) != flow.links.end();
}

}  // namespace

std::vector<double> fair_rates(std::span<const double> capacities, std::span<const SharingFlow> flows) {
  std::vector<double> rates(flows.size(), 0);
  std::vector<bool> held(flows.size(), false);
  // What a link has left, and how many of its flows still rise.
  const auto room = [&](std::size_t link) {
    double left = capacities[link];
    int rising = 0;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!crosses(flows[i], link)) continue;
      left -= rates[i];
      rising += held[i] ? 0 : 1;
    }
    return std::pair{left, rising};
  };
  while (std::find(held.begin(), held.end(), false) != held.end()) {
    double rise = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!held[i]) rise = std::min(rise, flows[i].limit - rates[i]);
    }
    for (std::size_t link = 0; link < capacities.size(); ++link) {
      const auto [left, rising] = room(link);
      if (rising > 0) rise = std::min(rise, left / rising);
    }
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!held[i]) rates[i] += std::max(rise, 0.0);
    }
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] >= flows[i].limit * (1 - kFull)) held[i] = true;
    }
    for (std::size_t link = 0; link < capacities.size(); ++link) {
      if (room(link).first > kFull * capacities[link]) continue;
      for (std::size_t i = 0; i < flows.size(); ++i) {
        if (crosses(flows[i], link)) held[i] = true;
      }
    }
  }
  return rates;
}

}  // namespace cp::sim
