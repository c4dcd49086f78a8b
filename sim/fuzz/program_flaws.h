// Plants what is wrong on purpose in a program (Program::Flaw of traces/fuzz_case.proto). These functions do
// nothing if the case has no flaw of their kind, or the plans have no place for it.
#pragma once

#include <vector>

#include "shared/plan/plan.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Plants a flaw that concerns whole steps, before edges are made: it leaves a step out, or exchanges two
// collectives of one rank.
void plant_step_flaw(const proto::Program& job, std::vector<Plan>& drafts);
// Plants any other flaw, in whole plans.
void plant_flaw(const proto::Program& job, std::vector<Plan>& plans);

}  // namespace cp::sim
