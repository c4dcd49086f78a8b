// What the tolerances of attention and of its latent rows are put together with.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace cp::sim {

// How many standard errors a result may be off (attention_tolerance.h). Chosen: for one element the bound
// fails with a probability of at most 2 exp(-8) = 7e-4 even if every rounding were as bad as can be.
inline constexpr double kGrowth = 4;

inline double square(double x) { return x * x; }

// The largest size of a value.
inline double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

}  // namespace cp::sim
