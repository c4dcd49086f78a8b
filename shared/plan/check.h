// The checker: proves of all ranks' plans together what builders promise. It shares no code with them but the
// types and the rules of single steps (validate_step).
//
//   structure    every step valid (views in bounds, sizes, dtypes), edges backward in issue order, groups
//                consistent with a plan for each member, one stream a group, one set of inputs for all plans
//   matching     collectives of a group agree on every rank in sequence: operation, dtype, reduction, root,
//                counts, Repeats; each send of an Exchange has its receive, in order, with equal counts; the
//                counts digest is that of the real matrix
//   order        no two unordered steps of a rank touch the same element, one of them writing (in the arena too)
//   contents     nothing is read before it is written; every output element is written
//   progress     no wait cycle, both with any number of collectives in flight and with one at a time in issue
//                order; the collectives of ranks that share two groups are issued in compatible order
//   memory       temporaries lie in the arena, are used within their declared uses, and share bytes only one
//                after the other; arena and bindings stay within the limits
//
// What data a step means to move is no part of a plan, hence not of the proof: a step that reads the wrong, but
// written, element is noticed only by who knows the right result.
//
// Repeats are unrolled as far as their edges and slots reach, not by their count; all iterations count only
// where a buffer other than an input is a stack (an Advance without period). The time grows with the steps and
// the contiguous runs of their views, not with their elements.
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

// `plans`: one for each rank that takes part, in any order. Throws CollectiveMismatch, Deadlock or
// CheckFailure whose message names the ranks, the steps (number and label) and the values; returns normally
// when everything holds.
void check(std::span<const Plan> plans, const CheckLimits& limits = {});

}  // namespace cp
