// Movement: the bytes of a matched collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/fabric/communicator.h"

namespace cp::sim {

// Bytes that the collective copies or reduces in all, as a measure of its work.
std::int64_t work_bytes(const Communicator& communicator);

// Does part `part` of `parts` of a round whose calls match: some receivers' blocks, or some elements of a
// reduction. Parts touch disjoint outputs and may run at once; together they are the collective. Reductions
// run in the order of the members whatever the number of parts. `inputs`: scratch, kept by the caller to
// spare allocations.
void move_part(Communicator& communicator, std::int32_t part, std::int32_t parts,
               std::vector<const std::byte*>& inputs);

}  // namespace cp::sim
