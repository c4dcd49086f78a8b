// The options of attention that no kernel has (sim/scenario/kernel_option_fields.h) as flags, each refused by its name.
#pragma once

#include "cli/flags.h"
#include "cli/scenario_flags.h"

namespace cp::cli {

// A flag for each, --attn-mask for attn_mask, listed together in --help.
void add_kernel_option_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);

}  // namespace cp::cli
