// PipelineBound: the least that the stages of a pipeline take, by formula (bound.h). The evaluator of layouts
// has it for the stages that it has not replayed yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/transformer/pipeline.h"

namespace cp::sim {

struct PipelineBound {
  // Passes of one micro-batch, and what stages send each other, by a bound of one message.
  std::vector<StageTimes> stages;
  double update_ns = 0;  // behind the last pass
};

// Whether it pays to put the stages into their schedule: that may spare a replay of some milliseconds, and
// takes longer the more passes there are. The number is chosen: a search for Llama-3.1-405B on 2,048 GPUs,
// with up to 262,144 passes, took 27.7 s on one core without a limit and 8.5 s with this one.
inline bool is_quick(std::size_t stages, std::int64_t micro_batches) {
  constexpr std::int64_t kPasses = 50'000;
  return 2 * static_cast<std::int64_t>(stages) * micro_batches <= kPasses;
}

}  // namespace cp::sim
