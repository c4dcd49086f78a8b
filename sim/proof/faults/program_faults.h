// Faults of programs: one rank's plan as it would be if that rank's code differed from the others'.
//
// The plan stays valid by itself: its steps pass validate_step(), edges and uses are in order, a changed
// split has the digest of its own count matrix. Only together with the other ranks' plans is it wrong, which
// is for the control plane (require_equal_plans) or the fabric to find.
//
//   skip_collective    the collective is left out
//   repeat_collective  is issued twice in a row
//   swap_collectives   is issued after the rank's next collective. Not for two that no group could tell
//                      apart: of one group, with equal arguments, whose order is nobody's to see
//   other_reduction    reduces by another operation
//   other_root         broadcasts from the next member
//   other_dtype        moves as many elements of another dtype
//   other_split        an exchange: as many elements to other peers. Else: another count of elements for each
//                      member
//   other_group        on another group of the plan that has as many members, or else on one that only this
//                      rank knows
//   other_plan         the whole plan is that of another problem, which the caller gives. Not where the rank
//                      has collectives with others in neither: nobody could tell
//
// What a changed collective moves lies in memory of its own, beside the plan's: it is the call that is wrong,
// nothing else.
#pragma once

#include <optional>
#include <span>

#include "shared/plan/plan.h"
#include "sim/fabric/faults.h"

namespace cp::sim {

// Collectives that the plan issues, those of a Repeat in each iteration: InjectedFault::collective counts
// them.
std::int64_t num_collectives(const Plan& plan);

// The plan of the rank `fault.rank` with the fault. `plans`: of all ranks, right ones. `other`: that rank's
// plan of another problem, for other_plan alone. Inside of a Repeat a fault is one of each iteration, as code
// in a loop is. Nothing where the place has no such fault: no such rank or collective, nothing to reduce, one
// member only, ...
std::optional<Plan> damage_program(std::span<const Plan> plans, const InjectedFault& fault,
                                   const Plan* other = nullptr);

}  // namespace cp::sim
