// Flags for the options of attention that no kernel has (sim/scenario/kernel_option_fields.h). Each is
// accepted here and refused later by its name, with what works instead.
#pragma once

#include "cli/common/flags.h"
#include "cli/cpsim/scenario_flags.h"

namespace cp::cli {

// Adds a flag for each option: --attn-mask for attn_mask. --help lists them together under a heading of their
// own.
void add_kernel_option_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags);

}  // namespace cp::cli
