// Questions for tests of the search.
#pragma once

#include <string>

#include "sim/planner/search/question.h"

namespace cp::testing {

// A preset's model on `nodes` nodes of dgx-h100, by the default software, in training.
sim::PlanQuestion training_question(const std::string& model, int nodes, std::int64_t seq_len,
                                    std::int64_t batch);

// Two hidden layers' worth of a model, so small that a search takes milliseconds, on `gpus` GPUs in nodes of
// four.
sim::PlanQuestion small_question(int gpus, std::int64_t seq_len = 4096, std::int64_t batch = 8);

}  // namespace cp::testing
