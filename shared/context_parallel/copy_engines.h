// Which strategies copy engines can serve. Internal to shared/context_parallel.
#pragma once

#include <string>

#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/target.h"

namespace cp::detail {

// Why copy engines cannot move what the strategy moves, with the values and the nearest change that would do,
// to be read behind "transfers=copy_engine"; empty if they can. All else must be legal.
//   - something moves, and not by exchanges of unequal parts (need_only, pass_q, head_tail_exchange)
//   - what comes at once has equal blocks on all ranks: the library's collectives know no others
//   - the target's library has what it takes (Target::sm_only)
std::string refuse_copy_engines(const AttentionProblem& problem, int cp, const Strategy& strategy,
                                const Target& target);

}  // namespace cp::detail
