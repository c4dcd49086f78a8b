// How much memory a run of attention with data takes, so that one that does not fit is refused before it
// begins.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "shared/context_parallel/attention_plan.h"
#include "shared/context_parallel/problem.h"
#include "shared/plan/plan.h"

namespace cp::sim {

// Bytes of the float64 inputs of one device (AttentionTestData).
std::int64_t test_input_bytes(const AttentionProblem& problem);
// Bytes of the float64 inputs and results of one device (AttentionTestData), backward ones included where
// asked.
std::int64_t test_data_bytes(const AttentionProblem& problem, bool backward);

// Bytes of all ranks together: what the plans declare, kept from the forward to the backward pass, and a
// thread for each rank. `backward`: none, or as many as `forward`.
std::int64_t ranks_bytes(std::span<const Plan> forward, std::span<const Plan> backward);

// About what the plans of all ranks take, and with `records` what a run keeps of each of their transfers; to
// a factor of two. In a ring each rank has a step with each other, and each step a record that counts the
// bytes of each peer. Known before anything is planned.
std::int64_t planning_bytes(const AttentionRequest& request, bool records);
// Throws InvalidInput when that is more than `limit`, with how many ranks would fit.
void require_planning_memory(const AttentionRequest& request, bool records, std::int64_t limit);

// Throws InvalidInput that says what `needed` is for, when it is more than `limit`, and which length would
// fit.
void require_memory(const AttentionProblem& problem, std::string_view what, std::int64_t needed,
                    std::int64_t limit);

}  // namespace cp::sim
