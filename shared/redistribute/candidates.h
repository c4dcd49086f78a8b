// The moves that may follow a layout. Internal to shared/redistribute. To add a kind of move: enumerate it
// here, say in traffic.cc who sends what, charge it in move_cost.cc, write its steps in lower.cc.
#pragma once

#include <vector>

#include "shared/redistribute/redistribution.h"
#include "shared/redistribute/traffic.h"

namespace cp::detail {

// Appends to `out` every candidate from `state`, in the order in which redistribution.h lists the kinds.
// Moves that end in a layout equal to `state` are left out.
void list_candidates(LayoutSpace& space, const State& state, const RedistributeOptions& options,
                     std::vector<StateMove>& out);

}  // namespace cp::detail
