// The fields and flags of attention that no kernel has: what shared/context_parallel/kernel_options.h names, each under its name.
#pragma once

#include <map>
#include <string>

#include "cli/scenario_flags.h"
#include "shared/context_parallel/kernel_options.h"

namespace cp::cli {

// A flag for each, --attn-mask for attn_mask, listed together in --help.
void add_kernel_option_flags(CLI::App& app, ScenarioFlags<proto::Attention>& flags);

// What the job asks for, with values as text. A number of 0 and a false ask for nothing.
std::map<KernelOption, std::string> kernel_options_of(const proto::Attention& job);

}  // namespace cp::cli
