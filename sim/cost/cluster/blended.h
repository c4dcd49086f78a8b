// How two things that a kernel does at the same time, for example computing and reading memory, add up to its
// time.
#pragma once

#include <algorithm>
#include <cmath>

namespace cp::sim {

// Returns (a^blend + b^blend)^(1 / blend), written so that no power overflows. With blend = 1 the times add
// up; the larger it is, the more the longer one hides the other.
inline double blended(double a, double b, double blend) {
  const double most = std::max(a, b), least = std::min(a, b);
  if (least <= 0 || blend == 1) return blend == 1 ? most + least : most;
  return most * std::pow(1 + std::pow(least / most, blend), 1 / blend);
}

}  // namespace cp::sim
