// The flags that say what attention is and how it is split, for all commands that take one.
#pragma once

#include "cli/common/flags.h"
#include "cli/cpsim/scenario_flags.h"
#include "shared/context_parallel/problem.h"

namespace cp::cli {

// The mesh, the shape and the mask; whether --documents may leave keys to nobody.
void add_problem_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags, bool& padding);

// Throws InvalidInput where documents end before the keys do: a forgotten end is likelier than padding, which
// has to be said. A scenario's file was checked when it was written.
void require_covered(const AttentionProblem& problem, const ScenarioFlags<proto::Attention>& flags,
                     bool padding);

// One strategy and its variants.
void add_strategy_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);

}  // namespace cp::cli
