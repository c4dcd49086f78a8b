// The host's time to issue a step. It issues a plan's steps in their order, all streams in turn; a GPU that
// comes to a step before it was issued waits, and a host that is ahead costs nothing.
#pragma once

#include "shared/plan/plan.h"
#include "sim/cost/cluster/software.h"

namespace cp::sim {

double issue_ns(const Step& step, const SoftwareProfile& software);

// The same software with a host that is always ahead.
SoftwareProfile without_host(SoftwareProfile software);

}  // namespace cp::sim
