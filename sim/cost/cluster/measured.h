// What is known of the tables that rates were fitted to.
#pragma once

#include <algorithm>

namespace cp::sim {

// Absolute relative errors on rows of the table that did not take part in the fit: the rate's interval.
struct LeftOut {
  int rows = 0;  // 0: nothing was left out
  double median = 0, p90 = 0;
  bool operator==(const LeftOut&) const = default;
};

// What measured calls found in the second-level cache, where the call before had left it: up to `mib` of what
// they move came `speed` times as fast. For predictions of those rows alone: between two calls of a layer a
// model passes over all other layers.
struct Resident {
  double mib = 0, speed = 0;  // 0: no such thing was fitted
  bool operator==(const Resident&) const = default;

  // Of bytes that memory moves at bytes_per_us.
  double us(double bytes, double bytes_per_us) const {
    if (mib == 0) return bytes / bytes_per_us;
    const double near = std::min(bytes, mib * 1048576);
    return (bytes - near) / bytes_per_us + near / (bytes_per_us * speed);
  }
};

}  // namespace cp::sim
