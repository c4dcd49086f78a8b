// Matching: do the calls of all members of a group belong together?
#pragma once

#include <optional>
#include <string>

#include "sim/fabric/communicator.h"

namespace cp::sim {

// Compares every argument of the calls in the slots, all of which have arrived: operation, dtype, reduction,
// root, count; for an exchange each send with its receive (peer, position, count, dtype) and the digest of
// the count matrix. Nothing when they agree, and then the receives know their sends. Else what differs: the
// ranks in the minority with their values and the majority's, or "tie" when no value has a majority.
std::optional<std::string> find_mismatch(Communicator& communicator);

}  // namespace cp::sim
