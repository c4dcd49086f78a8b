// PipelineBound: the least that the stages of a pipeline take, by formula (bound.h). The evaluator of layouts
// has it for the stages that it has not replayed yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/cost/schedule/pipeline.h"

namespace cp::sim {

struct PipelineBound {
  std::vector<StageTimes> stages;  // passes of one micro-batch, without what stages send each other
  double update_ns = 0;            // behind the last pass
};

// Whether to put the stages into their schedule takes less time than the replay that it may spare, about a
// millisecond: so many passes do.
inline bool is_quick(std::size_t stages, std::int64_t micro_batches) {
  constexpr std::int64_t kPasses = 50'000;
  return 2 * static_cast<std::int64_t>(stages) * micro_batches <= kPasses;
}

}  // namespace cp::sim
