// Matching: whether the calls of all members of a group are calls of the same collective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shared/plan/dissent.h"
#include "sim/fabric/communicator.h"

namespace cp::sim {

struct Mismatch {
  std::string text;
  // The ranks that differ. If only the splits of an exchange differ, the sender and the receiver contradict
  // each other and nobody can tell which is wrong: then both are named, as a tie.
  Dissent dissent;
  std::string operation, group;  // as the first member states them
  std::int64_t sequence = 0;
};

// Compares all arguments of the calls in the slots; all members must have arrived. The arguments are the
// digest of what the plans were made from, operation, dtype, reduction, root and count; for an exchange, each
// send with its receive (peer, position, count, dtype), and the digest of the count matrix.
//
// Returns nothing if they agree; then each receive points to its send (TransferCall::partner). Otherwise
// returns what differs: the ranks in the minority with their values and the majority's value, or "tie" if no
// value has a majority.
std::optional<Mismatch> find_mismatch(Communicator& communicator);

}  // namespace cp::sim
