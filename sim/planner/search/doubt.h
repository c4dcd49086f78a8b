// What is not known of the rates that a question's layouts are timed with, and what of it tells them apart.
#pragma once

#include "sim/planner/search/answer.h"
#include "sim/planner/search/decision.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Of a question's rates by what the cluster's and the software's numbers rest on, and of the model itself.
Doubt doubt_of(const PlanQuestion& question);

// Sets the intervals, chances and regrets of all candidates, and what the answer says of all of them. Of
// those that may be the fastest chains are added that are the longest where transfers are slower and kernels
// faster than believed, and the other way round; each takes a replay; a stop (sim/base/stop.h) leaves them
// out. `threads` > 0: the answer is the same for any number.
void weigh(PlanAnswer& answer, int threads);

// One layout timed apart, with the chains and the interval that weigh() gives; its chance and regret stay 0.
// It is not refused.
Candidate weighed(const PlanQuestion& question, const ParallelLayout& layout);

// How sure it is that `a` takes longer than `b`, both of which have been weighed.
Comparison compare(const Candidate& a, const Candidate& b, const PlanQuestion& question);

}  // namespace cp::sim
