// The choosers of BatonOrder's kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/fabric/baton_order.h"

namespace cp::sim {

// Not for random, which BatonScheduler draws itself. Throws InvalidInput for values that the order's kind
// does not take.
std::shared_ptr<TurnChooser> make_chooser(const BatonOrder& order, std::uint64_t seed);

}  // namespace cp::sim
