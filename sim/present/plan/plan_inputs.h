// A PlanQuestion in words: what was asked, as it was understood.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Titles and texts, in order: model, workload, cluster, rates, software, fixed, assumed; those that say
// nothing are left out.
std::vector<std::pair<std::string, std::string>> plan_inputs(const sim::PlanQuestion& question);

}  // namespace cp::sim
