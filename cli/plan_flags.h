// The flags that say what `cpsim plan` is asked: one for each field of a scenario's `plan`.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/scenario_flags.h"

namespace cp::cli {

void add_plan_flags(CLI::App& app, ScenarioFlags<proto::PlanLayouts>& flags);

}  // namespace cp::cli
