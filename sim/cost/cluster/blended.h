// How two things that a kernel does at once share its time.
#pragma once

#include <algorithm>
#include <cmath>

namespace cp::sim {

// (a^blend + b^blend)^(1 / blend), of numbers whose powers a double may not hold. 1: they add up; more: the
// longer hides the other.
inline double blended(double a, double b, double blend) {
  const double most = std::max(a, b), least = std::min(a, b);
  if (least <= 0 || blend == 1) return blend == 1 ? most + least : most;
  return most * std::pow(1 + std::pow(least / most, blend), 1 / blend);
}

}  // namespace cp::sim
