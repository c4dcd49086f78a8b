// The time that the host needs to issue a step. The host issues the steps of a plan in their order, whatever
// their streams. A GPU that comes to a step before it was issued waits; a host that is ahead costs nothing.
#pragma once

#include "shared/plan/plan.h"
#include "sim/cost/cluster/software.h"

namespace cp::sim {

double issue_ns(const Step& step, const SoftwareProfile& software);

// Returns the same software with a host that is always ahead.
SoftwareProfile without_host(SoftwareProfile software);

}  // namespace cp::sim
