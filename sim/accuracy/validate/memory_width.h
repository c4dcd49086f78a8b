// How far measured memory lies from its prediction: the width of every plan's memory.
#pragma once

#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Between which factors of its prediction the memory of four runs in five lies, by the ratios of those that
// were measured: order statistics, so that nothing is assumed of their distribution. With fewer than nine
// runs their extremes, which hold (n - 1) / (n + 1) of further runs.
MemoryWidth memory_width_of(std::vector<double> measured_over_predicted);

// Of the table end_to_end_memory. Computed once.
const MemoryWidth& measured_memory_width();

}  // namespace cp::sim
