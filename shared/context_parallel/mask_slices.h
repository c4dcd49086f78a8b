// From global positions to what kernels take: the mask between some queries and some keys, in local
// coordinates (contract 9). No strategy has a mask rule of its own; all ask here.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/placement/index_set.h"
#include "shared/plan/plan.h"

namespace cp {

// Where batch entries have documents of their own, mask_slices() is of one mask_groups() problem at a time;
// the others are of all entries.

// The allowed pairs of q_rows x k_rows as disjoint slices in the local order of both, none empty, none larger
// than the pairs it allows need, ordered by query. Rows that lie at equal distances in both sets (striped:1)
// make one slice; in general there is one for each stretch of consecutive queries and each stretch of
// consecutive keys at the edge of the mask, and what lies inside is joined.
std::vector<MaskSlice> mask_slices(const AttentionProblem& problem, const IndexSet& q_rows,
                                   const IndexSet& k_rows);

// Whether any of the pairs is allowed, in any batch entry. Stops at the first.
bool any_allowed(const AttentionProblem& problem, const IndexSet& q_rows, const IndexSet& k_rows);

// The keys that any of the queries may see, in any batch entry, ascending.
IndexSet needed_keys(const AttentionProblem& problem, const IndexSet& q_rows);

// Allowed pairs of the queries [begin, end) with all keys, of one head; of one batch entry, but of all
// together where they have documents of their own.
std::int64_t allowed_cells(const AttentionProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace cp
