// The flags that say what `cpsim plan` is asked. There is one for each field of a scenario's `plan`.
#pragma once

#include "cli/common/flags.h"
#include "cli/cpsim/scenario_flags.h"

namespace cp::cli {

void add_plan_flags(FlagSet app, ScenarioFlags<proto::PlanLayouts>& flags);

}  // namespace cp::cli
