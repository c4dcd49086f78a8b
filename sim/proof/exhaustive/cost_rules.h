// The cost of each kind of move. cost_of() (move_costs.h) chooses among these functions.
#pragma once

#include <vector>

#include "sim/proof/exhaustive/move_ledger.h"

namespace cp::sim {

// A rank of a group, by its position in the mesh and its place in the MeshPair.
struct Member {
  std::size_t position = 0, place = 0;
};
// The groups of ranks that differ along these axes only; inside a group the last axis varies fastest.
std::vector<std::vector<Member>> groups_of(const Mesh& mesh, const std::vector<int>& axes,
                                           const MeshPair& world);

// Each function counts one kind of move in the setting. `form` says which, and along which axes.
MoveCost cost_of_slice(const Setting& setting);
MoveCost cost_of_to_partial(const Setting& setting);
MoveCost cost_of_all_reduce(const Setting& setting, const MoveForm& form);
MoveCost cost_of_equal_counts(const Setting& setting, const MoveForm& form);  // all other collectives
MoveCost cost_of_exchange(const Setting& setting);
MoveCost cost_of_reduce_exchange(const Setting& setting, const MoveForm& form);

}  // namespace cp::sim
