// The flags that say what attention is and how it is split, for all commands that take one.
#pragma once

#include "cli/common/flags.h"
#include "cli/cpsim/scenario_flags.h"

namespace cp::cli {

// The mesh, the shape and the mask.
void add_problem_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);
// One strategy and its variants.
void add_strategy_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);

}  // namespace cp::cli
