// Translates masks from global positions to what kernels take: the mask between some queries and some keys,
// in local coordinates (contract 9). No strategy has a mask rule of its own; all of them ask here.
//
// For example, under a causal mask the queries 4..7 and the keys 0..7 make one causal slice with the diagonal
// 4. With the keys 0..3 and 8..11 instead, they make one full slice over the first four keys, and none over
// the others.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/placement/index_set.h"
#include "shared/plan/plan.h"

namespace cp {

// If batch entries have documents of their own, mask_slices() takes one problem of mask_groups() at a time.
// The other functions look at all entries.

// The allowed pairs of q_rows x k_rows as disjoint slices, in the local order of both, ordered by query. None
// is empty, and none is larger than its allowed pairs need. Rows at equal distances in both sets (striped:1)
// make one slice. In general there is one slice for each stretch of consecutive queries and each stretch of
// consecutive keys at the edge of the mask; what lies inside the mask is joined.
std::vector<MaskSlice> mask_slices(const AttentionProblem& problem, const IndexSet& q_rows,
                                   const IndexSet& k_rows);

// Whether any of the pairs is allowed, in any batch entry. Stops at the first one.
bool any_allowed(const AttentionProblem& problem, const IndexSet& q_rows, const IndexSet& k_rows);

// The keys that any of the queries may see, in any batch entry; ascending.
IndexSet needed_keys(const AttentionProblem& problem, const IndexSet& q_rows);

// The number of allowed pairs of the queries [begin, end) with all keys, for one head. It is that of one
// batch entry, or of all together if they have documents of their own.
std::int64_t allowed_cells(const AttentionProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace cp
