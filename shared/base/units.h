// Factors between units of time.
#pragma once

#include <limits>

namespace cp {

inline constexpr double kNsPerUs = 1e3, kUsPerMs = 1e3, kPsPerUs = 1e6;
// The time of an event that does not happen.
inline constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace cp
