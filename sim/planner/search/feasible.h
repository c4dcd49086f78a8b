// Whether some layout is legal and fits. It is quick, because nothing is replayed.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Returns a layout that is legal and fits; nothing if there is none. It is the first that fits of the layouts
// that need least memory of their families, ordered by what they need at least; if none of these does, the
// first of the other members.
//
// Most of the time goes into layouts that may fit by what they need at least, and whose plans do not. After
// `most_plans` of them it gives up and returns nothing: for those who ask about something that would only be
// nice to know.
std::optional<ParallelLayout> feasible(const PlanQuestion& question,
                                       std::int64_t most_plans = std::numeric_limits<std::int64_t>::max());

}  // namespace cp::sim
