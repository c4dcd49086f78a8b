// Plants faults of programs: one rank's plan becomes what it would be if that rank's code differed from the
// others'.
//
// The plan stays valid by itself: its steps pass validate_step(), edges and uses are in order, and a changed
// split has the digest of its own count matrix. It is wrong only together with the other ranks' plans, which
// the control plane (require_equal_plans) or the fabric has to find.
//
//   skip_collective    the collective is left out
//   repeat_collective  it is issued twice in a row
//   swap_collectives   it is issued after the rank's next collective. Not if no group could tell the two
//                      apart: two of one group with equal arguments have an order that nobody sees
//   other_reduction    it reduces by another operation
//   other_root         it broadcasts from the next member
//   other_dtype        it moves as many elements of another dtype
//   other_split        an exchange sends as many elements to other peers; any other collective has another
//                      count of elements for each member
//   other_group        it runs on another group of the plan that has as many members, or else on one that
//                      only this rank knows
//   other_plan         the whole plan is that of another problem, which the caller gives. Not if the rank has
//                      no collectives with others in either plan: nobody could tell
//
// What a changed collective moves lies in memory of its own, beside the plan's, so that only the call is
// wrong.
#pragma once

#include <optional>
#include <span>

#include "shared/plan/plan.h"
#include "sim/fabric/faults.h"

namespace cp::sim {

// The number of collectives that the plan issues; one in a Repeat counts in each iteration.
// InjectedFault::collective is such a number.
std::int64_t num_collectives(const Plan& plan);

// The plan of the rank `fault.rank` with the fault. `plans` are the right plans of all ranks. `other` is that
// rank's plan of another problem, which only other_plan needs. A fault inside a Repeat is one of each
// iteration, as a fault in a loop's code is. Returns nothing if the place has no such fault: there is no such
// rank or collective, it does not reduce, it has one member only, and so on.
std::optional<Plan> damage_program(std::span<const Plan> plans, const InjectedFault& fault,
                                   const Plan* other = nullptr);

}  // namespace cp::sim
