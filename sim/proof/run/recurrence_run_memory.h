// Says how much memory a run of a recurrence with data takes, so that one that does not fit is refused before
// it begins. All sizes are in bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shared/plan/plan.h"
#include "shared/recurrence/problem.h"

namespace cp::sim {

// The float64 inputs of one device (RecurrenceTestData), and these with its results and the norms that bound
// errors.
std::int64_t test_input_bytes(const RecurrenceProblem& problem);
std::int64_t test_data_bytes(const RecurrenceProblem& problem, bool backward);
// What all ranks take together: what their plans declare.
std::int64_t ranks_state_bytes(std::span<const Plan> forward, std::span<const Plan> backward);

// Throws InvalidInput if `bytes` are more than the limit; `what` needs them.
void require_memory(const RecurrenceProblem& problem, std::string_view what, std::int64_t bytes,
                    std::int64_t limit);

}  // namespace cp::sim
