// How far measured memory lies from its prediction: the width of every plan's memory.
#pragma once

#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Returns two factors of the prediction, between which the memory of four runs in five lies. They are judged
// by `measured_over_predicted`, the ratios of runs that were measured. They are order statistics, so nothing
// is assumed about the distribution. If there are fewer than nine runs n, the factors are the extremes,
// between which (n - 1) / (n + 1) of further runs lie. Without runs the default is returned.
MemoryWidth memory_width_of(std::vector<double> measured_over_predicted);

// The width that follows from the table end_to_end_memory. It is computed once, at the first call.
const MemoryWidth& measured_memory_width();

}  // namespace cp::sim
