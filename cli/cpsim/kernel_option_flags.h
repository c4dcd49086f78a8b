// The options of attention that no kernel has (sim/scenario/kernel_option_fields.h) as flags, each refused by
// its name.
#pragma once

#include "cli/common/flags.h"
#include "cli/cpsim/scenario_flags.h"

namespace cp::cli {

// A flag for each, --attn-mask for attn_mask, listed together in --help.
void add_kernel_option_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);

}  // namespace cp::cli
