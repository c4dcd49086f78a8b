// Whether some layout is legal and fits. It is quick, because nothing is replayed.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "sim/planner/search/question.h"

namespace cp::sim {

struct FeasibleOptions {
  int threads = 0;  // 0: one for each core
  // Most of the time goes into layouts that may fit by what they need at least, and whose plans do not. After
  // so many of them the search gives up and finds nothing: for those who ask about something that would only
  // be nice to know.
  std::int64_t most_plans = std::numeric_limits<std::int64_t>::max();
};

// Returns a layout that is legal and fits; nothing if there is none, with the scan of recurrences that the
// question fixes or else all_gather. Of each family the member that needs least memory is looked at first,
// those before others that need least of all, and the other members where no such member fits. The answer
// does not depend on the threads.
std::optional<ParallelLayout> feasible(const PlanQuestion& question, const FeasibleOptions& options = {});

}  // namespace cp::sim
