// A PlanAnswer in one sentence.
#pragma once

#include <string>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// The sentence: "Llama-3.1-8B, 131,072 tokens, 16 GPUs of dgx-h100: tp=2, cp=8 ring head_tail, 3.21 s a
// step". It leaves out degrees of 1. Without a candidate it ends in ": nothing fits".
std::string headline(const PlanAnswer& answer);

// What is predicted for a layout, with its interval: "2 min 36 s a step (1 min 49 s to 3 min 22 s)", or in
// decode "15.5 ms between tokens (13.9 ms to 17.6 ms), 12.1 s to the first".
std::string prediction(Phase phase, const Candidate& candidate);

}  // namespace cp::sim
