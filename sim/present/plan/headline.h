// A PlanAnswer in one sentence.
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// "Llama-3.1-8B, 131,072 tokens, 16 GPUs of dgx-h100: tp=2, cp=8 ring head_tail, 3.21 s a step". Degrees of 1
// are left out. Without a candidate: "...: nothing fits".
std::string headline(const PlanAnswer& answer);

}  // namespace cp::sim
