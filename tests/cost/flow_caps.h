// Flows without a cap of their own, in tests.
#pragma once

#include <limits>

namespace cp::testing {

constexpr double kNoCap = std::numeric_limits<double>::infinity();

}  // namespace cp::testing
