// How far measured memory lies from its prediction: the width of every plan's memory.
#pragma once

#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Returns the two factors of the prediction between which the memory of four runs in five lies, judged by the
// ratios of runs that were measured. They are order statistics, so nothing is assumed about the distribution.
// With fewer than nine runs n they are the extremes, between which (n - 1) / (n + 1) of further runs lie.
MemoryWidth memory_width_of(std::vector<double> measured_over_predicted);

// Of the table end_to_end_memory. Computed once.
const MemoryWidth& measured_memory_width();

}  // namespace cp::sim
