// Matching: do the calls of all members of a group belong together?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shared/plan/dissent.h"
#include "sim/fabric/communicator.h"

namespace cp::sim {

struct Mismatch {
  std::string text;
  // Who differs; of an exchange whose splits alone differ, and nobody can tell who is wrong, a tie of the
  // pair.
  Dissent dissent;
  std::string operation, group;  // of the first member
  std::int64_t sequence = 0;
};

// Compares every argument of the calls in the slots, all of which have arrived: the inputs that their plans
// were made from, operation, dtype, reduction, root, count; for an exchange each send with its receive (peer,
// position, count, dtype) and the digest of the count matrix. Nothing when they agree, and then the receives
// know their sends. Else what differs: the ranks in the minority with their values and the majority's, or
// "tie" when no value has a majority.
std::optional<Mismatch> find_mismatch(Communicator& communicator);

}  // namespace cp::sim
