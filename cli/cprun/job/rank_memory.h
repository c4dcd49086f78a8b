// Whether a machine has the memory for its ranks, before they start.
#pragma once

#include "cli/cprun/launch.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// `here`: ranks of this machine, from `first` on. Throws InvalidInput where they would need more than is free
// here, with both figures and what would fit; says nothing where the system does not tell what is free.
void require_rank_memory(const proto::Scenario& scenario, const LaunchRequest& request, int first, int here);

}  // namespace cp::cli
