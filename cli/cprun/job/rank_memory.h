// Checks, before the ranks start, whether this machine has the memory for them.
#pragma once

#include "cli/cprun/launch.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// `here` is the number of ranks on this machine, and `first` is the first of them. Throws InvalidInput if
// they need more memory than is free; the message has both figures and a size that would fit. It counts the
// inputs, the memory of plans that run in the host's memory, and with --verify the results. If the system
// does not tell how much is free, nothing is checked.
void require_rank_memory(const proto::Scenario& scenario, const LaunchRequest& request, int first, int here);

}  // namespace cp::cli
