// What is uncertain in the times of a question's layouts, and how much of it matters for the choice between
// them.
#pragma once

#include "sim/planner/search/answer.h"
#include "sim/planner/search/decision.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// The doubt of each rate, by where the numbers of the cluster and the software come from (measured,
// published, estimated, ...; source.h), and the doubt of the model itself.
Doubt doubt_of(const PlanQuestion& question);

// Sets the intervals, chances and regrets of all candidates, and what the answer says about all of them
// together. Candidates that may be the fastest get two more chains first: the longest one if transfers are
// slower and kernels faster than believed, and the longest one in the opposite case. Each of these takes a
// replay; after a stop (sim/base/stop.h) they are left out. `threads` must be at least 1; the answer does not
// depend on it.
void weigh(PlanAnswer& answer, int threads);

// Times one layout on its own, with the chains and the interval that weigh() gives. Its chance and regret
// stay 0. refuse() must not refuse it.
Candidate weighed(const PlanQuestion& question, const ParallelLayout& layout);

// How certain it is that `a` takes longer than `b`. Both must have been weighed.
Comparison compare(const Candidate& a, const Candidate& b, const PlanQuestion& question);

}  // namespace cp::sim
