// Faults: what a machine or a program is made to do wrong, and what the fabric must make of it.
//
// The place of a fault is a rank, one of its collectives and, for faults of transfers, the peer that
// receives. `collective` counts the collectives of the rank from 0 in the order in which it launches them. It
// counts over the life of the fabric: a backward pass goes on where the forward pass stopped. A transfer is
// what one member gives to another in any collective: in a reduction its addend, in a broadcast the root's
// values for one member. If a collective has several transfers to the peer, the first one is meant. If there
// is no such transfer, or it has no bytes, the fault does not happen; Fabric::injected() tells which faults
// happened.
//
//   kind        what happens                                                                      what must come of it
//   delay       arrives `amount` of the receiver's turns later; the sender goes on                 nothing
//   reorder     the collective's transfers arrive in an order drawn from `amount`; those of one    nothing
//               pair keep theirs
//   duplicate   arrives twice; the next transfer of the pair in the group finds the second copy    wrong bytes
//               before its own bytes, and each later one those of the one before
//   drop        nothing arrives: the receiver keeps what lay there                                 wrong bytes
//   corrupt     one bit of byte `amount` modulo its size is flipped, bit `amount` / size modulo 8  wrong checksum
//   truncate    the last `amount` bytes (at least one, at most all) do not arrive                  wrong bytes
//   slow_rank   goes on when no other rank can; in parallel it yields its processor                nothing
//   dead_rank   its body ends when it comes to the collective                                      PeerLost that names it
//
// "Wrong bytes" is what find_transfer_fault() (shared/plan/transfer_check.h) finds in the traces, without
// checksums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/types.h"

namespace cp::sim {

// The numbers are those of Fault.Kind in traces/fuzz_case.proto.
enum class FaultKind : std::uint8_t {
  none = 0,
  delay = 1,
  reorder = 2,
  duplicate = 3,
  drop = 4,
  corrupt = 5,
  truncate = 6,
  slow_rank = 7,
  dead_rank = 8,
  // Faults of a rank's program. sim/proof/faults/program_faults.h damages the rank's plan with them before it
  // runs; the fabric itself refuses them.
  skip_collective = 9,
  repeat_collective = 10,
  swap_collectives = 11,
  other_reduction = 12,
  other_root = 13,
  other_dtype = 14,
  other_split = 15,
  other_group = 16,
  other_plan = 17,
};
inline constexpr int kNumFaultKinds = 18;

struct InjectedFault {
  FaultKind kind = FaultKind::none;
  Rank rank = 0;
  Rank peer = 0;  // of a transfer
  std::int64_t collective = 0;
  std::int64_t amount = 0;
  bool operator==(const InjectedFault&) const = default;
};

std::string_view name(FaultKind kind);  // "drop"
// "drop of what rank 1 sends to rank 2 in its collective 0"
std::string to_string(const InjectedFault& fault);

bool is_of_transfer(FaultKind kind);  // delay .. truncate
bool is_of_program(FaultKind kind);   // skip_collective .. other_plan
// True if a run with this fault must still end without an error and with the right result.
bool is_tolerated(FaultKind kind);

}  // namespace cp::sim
