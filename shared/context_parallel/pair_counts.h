// Counts the (query, key) pairs that the mask of a problem allows, for whole sets of rows: the sum of
// allowed_keys(), in closed form.
#pragma once

#include <cstdint>

#include "shared/context_parallel/problem.h"
#include "shared/placement/index_set.h"

namespace cp {

// Both count for one batch entry and one head, of a causal problem whose batch entries share their mask, with
// or without a window and documents. Time, for each document: a few steps for each run of the set, and for
// each row of the shorter side of a periodic one.
std::int64_t pairs_of_queries(const AttentionProblem& problem, const IndexSet& queries);
std::int64_t pairs_of_keys(const AttentionProblem& problem, const IndexSet& keys);

}  // namespace cp
