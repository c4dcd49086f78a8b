// The time to the first token of layouts that decode: how long they take to read the prompts.
#pragma once

#include <optional>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Reading what a decode question has cached: the prompts of all requests at once, as of a server that gets
// them together. None in other phases, where nothing is cached, and where the same GPUs read prompts between
// tokens (PlanQuestion::aggregated): there the evaluation of a layout says its ttft_us itself.
std::optional<PlanQuestion> prompt_question(const PlanQuestion& question);

// Sets ttft_us of the best layouts, of those of the classes, of the same ones in `all`, and of the first of
// them, as far as it is not set. It stays unset where the layout cannot read the prompt at all: of fewer
// tokens than ranks.
void add_first_tokens(PlanAnswer& answer, int threads);

}  // namespace cp::sim
