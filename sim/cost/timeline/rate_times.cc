#include "sim/cost/timeline/rate_times.h"

namespace cp::sim {

std::string_view name(Rate rate) {
  constexpr std::array<std::string_view, kNumRates> kNames = {"attention forward",
                                                              "attention backward",
                                                              "products",
                                                              "memory",
                                                              "kernel launch",
                                                              "NVLink",
                                                              "network",
                                                              "latency",
                                                              "host",
                                                              "host memory"};
  return kNames[static_cast<std::size_t>(rate)];
}

}  // namespace cp::sim
