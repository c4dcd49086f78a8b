// layout_timeline(): what each stream does during one step of a layout, as bars for the report.
#pragma once

#include <vector>

#include "shared/transformer/parallel_layout.h"
#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

// Without pipeline stages: the steps of the rank that is replayed, for one micro-batch and the update after
// it (serving: for the step). With stages: the schedule of every stage, one bar for each pass of a
// micro-batch. If there are more than `max_spans` bars, the longest ones are kept. The default is
// chosen, not measured: all bars are in the report's file, and a browser draws each of them.
std::vector<ReportSpan> layout_timeline(const PlanQuestion& question, const ParallelLayout& layout,
                                        std::size_t max_spans = 20000);

}  // namespace cp::sim
