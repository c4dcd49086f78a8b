// Compares a question with rows of servers under load (served_tokens.csv).
#pragma once

#include <optional>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Returns the measured time between tokens (TPOT) whose model, GPU, software, formats, lengths, requests of a
// replica and tp are most like the question's, scored or not. The question's phase must be decode. If
// `layout` is null, one replica is assumed, and tp does not count.
std::optional<NearestMeasurement> nearest_served(const PlanQuestion& question, const ParallelLayout* layout);

}  // namespace cp::sim
