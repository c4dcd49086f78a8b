// The flags that say what attention is computed and how it is split. All commands that take an attention
// share them.
#pragma once

#include "cli/common/flags.h"
#include "cli/cpsim/scenario_flags.h"
#include "shared/context_parallel/problem.h"

namespace cp::cli {

// Adds the flags for the mesh, the shape and the mask, and those of kernel_option_flags.h. --padding sets
// `padding`: the documents may then end before the keys do.
void add_problem_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags, bool& padding);

// Throws InvalidInput if documents end before the keys do, unless `padding` is true or the problem comes from
// a scenario's file, which was checked when it was written. Somebody has more likely forgotten an end than
// wanted padding, so padding must be asked for.
void require_covered(const AttentionProblem& problem, const ScenarioFlags<proto::Attention>& flags,
                     bool padding);

// Adds the flags that choose one strategy and its variants.
void add_strategy_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);

}  // namespace cp::cli
