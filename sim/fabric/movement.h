// Movement: copies and reduces the bytes of a collective whose calls match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/fabric/communicator.h"

namespace cp::sim {

// The bytes that the collective copies or reduces, over all members. It decides into how many parts the work
// is split.
std::int64_t work_bytes(const Communicator& communicator);

// Does part `part`, in [0, parts), of a round whose calls match: the blocks of some receivers, or some
// elements of a reduction. Different parts write different bytes and may run at the same time; all of them
// together are the collective. A reduction adds in the order of the members, so that its result does not
// depend on the number of parts. `inputs` is scratch space that the caller keeps to avoid allocations.
void move_part(Communicator& communicator, std::int32_t part, std::int32_t parts,
               std::vector<const std::byte*>& inputs);

}  // namespace cp::sim
