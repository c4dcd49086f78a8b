// PipelineBound: the least that the stages of a pipeline take, by formula (bound.h). The evaluator of layouts
// has it for the stages that it has not replayed yet.
#pragma once

#include <vector>

#include "sim/cost/schedule/pipeline.h"

namespace cp::sim {

struct PipelineBound {
  std::vector<StageTimes> stages;  // passes of one micro-batch, without what stages send each other
  double update_ns = 0;            // behind the last pass
};

}  // namespace cp::sim
