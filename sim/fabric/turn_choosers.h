// The TurnChooser of each kind of BatonOrder.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/fabric/baton_order.h"

namespace cp::sim {

// Makes the chooser of an order of any kind but `random`, which BatonScheduler draws itself. Throws
// InvalidInput if the order has values that its kind does not allow.
std::shared_ptr<TurnChooser> make_chooser(const BatonOrder& order, std::uint64_t seed);

}  // namespace cp::sim
