// The moves of shared/redistribute/redistribution.h, by their definition: from the axis lists of any two
// layouts.
//
// They are written from the contract alone, for the search that the planner is compared with. Nothing here
// generates, prunes or orders candidates.
#pragma once

#include <optional>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/redistribute/redistribution.h"

namespace cp::sim {

// What happens between two given layouts. `axes` are those of the group, in the order of its members, the
// last one fastest. It is empty for a local move, and if all ranks take part.
struct MoveForm {
  MoveKind kind = MoveKind::slice;
  std::vector<int> axes;
  bool operator==(const MoveForm&) const = default;
};

// All moves that lead from one layout to another on the same mesh and could be a step of any redistribution.
// A collective comes once for each order of its axes, if the order matters. Axes of size 1 do not count.
std::vector<MoveForm> moves_between(const Layout& from, const Layout& to);

// The exchange or reduce_exchange straight to the target, on the same mesh or another. Nothing if it is
// illegal.
std::optional<MoveForm> straight_move(const Layout& from, const Layout& target);

// Whether `layout` splits the target further, over axes along which the target is replicated. An exchange to
// another mesh may arrive in such a layout, or in the target itself.
bool splits_further(const Layout& layout, const Layout& target);

}  // namespace cp::sim
