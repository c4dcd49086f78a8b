// A PlanQuestion in words: what was asked, as it was understood.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// What can be said of the model, the workload and the cluster in a clause each, the most telling first:
// "Llama-3.1-8B: 8.03 B parameters"; "training: 16 sequences of 131,072 tokens a step", "bf16", ...; "2 nodes
// of dgx-h100: 16 NVIDIA H100", ...
std::string model_clause(const sim::PlanQuestion& question);
std::vector<std::string> workload_clauses(const sim::PlanQuestion& question);
std::vector<std::string> cluster_clauses(const sim::PlanQuestion& question);

// All of the question, as titles and texts in this order: model, workload, cluster, rates, software, fixed,
// assumed. Those that say nothing are left out.
std::vector<std::pair<std::string, std::string>> plan_inputs(const sim::PlanQuestion& question);

}  // namespace cp::sim
