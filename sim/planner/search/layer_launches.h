// How many kernels a layer launches one after the other, at least, read from a plan.
#pragma once

#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

struct LayerLaunches {
  double forward = 0, backward = 0;
};

// Of a layer of each of the model's kinds, on one GPU, with nothing computed again: what tensor and context
// parallelism, pieces and recomputation do to a layer adds kernels to these. The products of all experts
// count as one kernel. What the software gives no launch of its own (fused_rows) is left out.
std::vector<LayerLaunches> launches_of_kinds(const PlanQuestion& question);

}  // namespace cp::sim
