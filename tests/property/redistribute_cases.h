// What the properties of redistributions ask of a plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/redistribute/redistribution.h"
#include "tests/support/layout_generators.h"

namespace cp::testing {

inline Redistribution plan_of(const RedistributeCase& request) {
  return plan_redistribution(request.source, request.target, request.options);
}

// Largest over the ranks.
struct PlansMemory {
  std::int64_t peak_bytes = 0, arena_bytes = 0;
};

inline PlansMemory memory_of(const std::vector<Plan>& plans) {
  PlansMemory memory;
  for (const Plan& plan : plans) {
    memory.peak_bytes = std::max(memory.peak_bytes, peak_bytes(plan));
    memory.arena_bytes = std::max(memory.arena_bytes, plan.arena_bytes);
  }
  return memory;
}

// The smallest factor that works, as the message says.
inline double named_factor(const Infeasible& error) {
  const std::string message = error.what();
  constexpr std::string_view kName = "max_memory_factor=";
  const std::size_t at = message.rfind(kName);
  return at == std::string::npos ? 0 : std::stod(message.substr(at + kName.size()));
}

// How much faster than `first` a chain may be that the search found no faster. The search counts whole
// picoseconds: in either chain each rank's part of each step, and its casts together, are rounded by half a
// one at most.
inline double rounding_us(const Redistribution& first, const Redistribution& second) {
  constexpr double kHalfPicosecondUs = 0.5e-6;
  const std::size_t rounded = first.steps.size() + 1 + second.steps.size() + 1;
  return kHalfPicosecondUs * static_cast<double>(rounded);
}

}  // namespace cp::testing
