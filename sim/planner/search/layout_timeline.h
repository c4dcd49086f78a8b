// What each stream does in one step of a layout, for people to look at.
#pragma once

#include <vector>

#include "shared/transformer/parallel_layout.h"
#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Of the rank that is replayed: one micro-batch and the update behind it (serving: the step). With pipeline
// stages: the schedule of every stage, a bar for each pass of a micro-batch. At most `max_spans`, the longest
// ones.
std::vector<ReportSpan> layout_timeline(const PlanQuestion& question, const ParallelLayout& layout,
                                        std::size_t max_spans = 20000);

}  // namespace cp::sim
