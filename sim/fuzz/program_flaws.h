// What is wrong on purpose in a program (Program::Flaw of traces/fuzz_case.proto). Nothing happens where the
// plans have no place for it.
#pragma once

#include <vector>

#include "shared/plan/plan.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Those of whole steps, before edges are made: a step less, two collectives of one rank exchanged.
void plant_step_flaw(const proto::Program& job, std::vector<Plan>& drafts);
// All others, in whole plans.
void plant_flaw(const proto::Program& job, std::vector<Plan>& plans);

}  // namespace cp::sim
