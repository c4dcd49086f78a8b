// Rows of servers under load (served_tokens.csv) beside a question.
#pragma once

#include <optional>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// The TPOT whose model, GPU, software, formats, lengths, requests of a replica and tp are most like the
// question's, scored or not. The question's phase is decode; without a layout nothing is known of replicas
// and tp.
std::optional<NearestMeasurement> nearest_served(const PlanQuestion& question, const ParallelLayout* layout);

}  // namespace cp::sim
