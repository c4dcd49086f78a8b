// The flags of recurrent layers, beside those of attention that mean the same for them.
#pragma once

#include <optional>

#include "cli/cpsim/scenario_flags.h"

namespace cp::cli {

// --recurrence, --key-heads and --value-heads.
void add_recurrence_flags(FlagSet app, ScenarioFlags<proto::Recurrence>& flags);

// The job of `command` that flags and files ask for: an attention (`run`) or a recurrence. `attention` holds
// the flags that both share, and the files. Throws InvalidInput if both are asked for.
proto::Scenario scenario_of(const ScenarioFlags<proto::Attention>& attention,
                            const ScenarioFlags<proto::Recurrence>& recurrence);

}  // namespace cp::cli
