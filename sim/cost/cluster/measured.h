// What is known about the tables that rates were fitted to.
#pragma once

#include <algorithm>

namespace cp::sim {

// The errors of a rate on rows of its table that did not take part in the fit, as absolute shares of the
// measured time. The width of the rate's interval follows from them (widths.h).
struct LeftOut {
  int rows = 0;  // 0: nothing was left out
  double median = 0, p90 = 0;
  bool operator==(const LeftOut&) const = default;
};

// What measured calls found in the second-level cache because the call before had left it there: up to `mib`
// MiB of what they move came `speed` times as fast. It is used to predict the rows of the table only. In a
// model all other layers run between two calls of one layer, so that nothing is left in the cache.
struct Resident {
  double mib = 0, speed = 0;  // 0: no such thing was fitted
  bool operator==(const Resident&) const = default;

  // The time of so many bytes if memory moves bytes_per_us.
  double us(double bytes, double bytes_per_us) const {
    if (mib == 0) return bytes / bytes_per_us;
    const double near = std::min(bytes, mib * 1048576);
    return (bytes - near) / bytes_per_us + near / (bytes_per_us * speed);
  }
};

}  // namespace cp::sim
