// RateTimes: a time, split by the rates of the cluster that it depends on. It says how much of a step's
// longest chain of operations is spent in attention, in products, in transfers, and so on.
//
// If attention is a tenth slower than believed, two layouts that spend the same time in it become slower by
// the same amount. The split tells that amount, as long as the chain stays the longest one. If there are
// several chains, the longest one counts (sim/planner/search/decision.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace cp::sim {

enum class Rate : std::uint8_t {
  attention_forward,
  attention_backward,
  products,
  memory,   // kernels that move bytes
  launch,   // from one kernel's end to the next one's beginning
  inside,   // NVLink, or PCIe within a node
  network,  // between nodes
  latency,  // of transfers, before their first byte
  host,     // issuing steps
  offload,  // copies to and from the host's memory, and what the host computes there
};
inline constexpr std::size_t kNumRates = 10;
std::string_view name(Rate rate);  // "attention forward"

// In ns, unless the owner says another unit.
struct RateTimes {
  std::array<double, kNumRates> of{};

  double& operator[](Rate rate) { return of[static_cast<std::size_t>(rate)]; }
  double operator[](Rate rate) const { return of[static_cast<std::size_t>(rate)]; }
  double sum() const { return std::accumulate(of.begin(), of.end(), 0.0); }
  void add(const RateTimes& other, double times = 1) {
    for (std::size_t i = 0; i < kNumRates; ++i) of[i] += times * other.of[i];
  }
  bool operator==(const RateTimes&) const = default;
};

// A factor for the times of each rate: 1.1 is a tenth slower than the cluster says.
struct RateFactors {
  std::array<double, kNumRates> of;
  RateFactors() { of.fill(1); }

  double& operator[](Rate rate) { return of[static_cast<std::size_t>(rate)]; }
  double operator[](Rate rate) const { return of[static_cast<std::size_t>(rate)]; }
  // The time of a chain with these factors.
  double of_chain(const RateTimes& chain) const {
    double sum = 0;
    for (std::size_t i = 0; i < kNumRates; ++i) sum += chain.of[i] * of[i];
    return sum;
  }
  bool operator==(const RateFactors&) const = default;
};

}  // namespace cp::sim
