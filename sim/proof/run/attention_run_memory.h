// Says how much memory a run of attention with data takes, so that one that does not fit is refused before it
// begins. All sizes are in bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/problem.h"
#include "shared/plan/plan.h"

namespace cp::sim {

// The float64 inputs of one device (AttentionTestData).
std::int64_t test_input_bytes(const AttentionProblem& problem);
// The float64 inputs and results of one device (AttentionTestData), with those of the backward pass if asked.
std::int64_t test_data_bytes(const AttentionProblem& problem, bool backward);

// What all ranks take together: what the plans declare, kept from the forward to the backward pass, and a
// thread for each rank. `backward` is empty, or has as many plans as `forward`.
std::int64_t ranks_bytes(std::span<const Plan> forward, std::span<const Plan> backward);

// About what the plans of all ranks take, to a factor of two; with `records`, also what a run keeps of each
// of their transfers. In a ring each rank has a step with each other rank, and each step has a record that
// counts the bytes of each peer. It is known before anything is planned. 0 for strategies in which nothing
// rotates.
std::int64_t planning_bytes(const AttentionRequest& request, bool records);

// Throws InvalidInput if that is more than `limit`; the error says how many ranks would fit.
void require_planning_memory(const AttentionRequest& request, bool records, std::int64_t limit);

// Throws InvalidInput if `needed` is more than `limit`. The error says what the memory is for (`what`), and
// which length would fit.
void require_memory(const AttentionProblem& problem, std::string_view what, std::int64_t needed,
                    std::int64_t limit);

}  // namespace cp::sim
