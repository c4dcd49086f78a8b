// How far the elements of one tensor may be from those that one device has in float64, and what rounding to a
// dtype costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "shared/base/dtype.h"

namespace cp::sim {

// The unit roundoff of a floating dtype.
constexpr double roundoff(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}
// Half of the distance of its least numbers.
constexpr double half_least_step(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-134 : dtype == DType::f16 ? 0x1p-25 : 0x1p-150;
}

struct TensorTolerance {
  // In the order of the tensor, without its last dimension if that is a head's; 0 if the result must be
  // exact: nothing was added up.
  std::vector<double> rows;
  double relative = 0;  // of the element's size, for rounding it to the tensor's dtype
  double least = 0;     // half of the dtype's least step

  // The tolerance of an element in this row, if this is its expected value.
  double at(std::size_t row, double expected) const {
    if (rows[row] == 0) return 0;
    return rows[row] + (relative == 0 ? 0 : std::max(relative * std::abs(expected), least));
  }
  // Whether the value found is within the tolerance. Infinities must be equal, and NaN never holds.
  bool holds(std::size_t row, double expected, double found) const {
    return found == expected || (std::isfinite(expected) && std::abs(found - expected) <= at(row, expected));
  }
};

}  // namespace cp::sim
