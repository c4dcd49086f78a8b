// The checker proves, of the plans of all ranks together, what builders promise. It shares no code with the
// builders but the types and the rules of single steps (validate_step), so that one mistake cannot hide in
// both.
//
//   structure    every step valid (views in bounds, sizes, dtypes), edges backward in issue order, groups
//                consistent with a plan for each member, one stream a group, one set of inputs for all plans
//   matching     collectives of a group agree on every rank in sequence: operation, dtype, reduction, root,
//                counts, Repeats; each send of an Exchange has its receive, in order, with equal counts; the
//                counts digest is that of the real matrix
//   symmetry     symmetric temporaries have equal places and sizes on all members of a group with
//                copy_engine; its collectives have equal places there, and each send lands where its receive
//                is
//   order        no two unordered steps of a rank touch the same element, one of them writing (in the arena
//                too)
//   contents     nothing is read before it is written; every output element is written
//   progress     no wait cycle, both with any number of collectives in flight and with one at a time in issue
//                order; the collectives of ranks that share two groups are issued in compatible order
//   memory       temporaries lie in the arena, are used within their declared uses, and share bytes only one
//                after the other (of a Repeat's body: in each iteration, and over the iterations by the rules
//                of order and contents); arena and bindings stay within the limits
//
// The checker cannot tell which data a step was meant to move. A step that reads a wrong element passes if
// that element was written; only comparing results finds such a mistake (sim/proof/run).
//
// A Repeat is unrolled as far as its edges and slots reach, whatever its count. Only where a buffer other
// than an input is a stack (an Advance without period) are all iterations looked at. The time of a check
// grows with the number of steps and of contiguous runs in their views, not with the number of elements.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shared/plan/plan.h"

namespace cp {

struct CheckLimits {
  std::optional<std::int64_t> peak_bytes;   // of any rank: arena plus bindings
  std::optional<std::int64_t> arena_bytes;  // of any rank
};

// `plans` has one plan for each rank that takes part, in any order. The function returns if everything holds;
// else it throws CollectiveMismatch, Deadlock or CheckFailure, and the message names the ranks, the steps
// (number and label) and the values.
void check(std::span<const Plan> plans, const CheckLimits& limits = {});

}  // namespace cp
