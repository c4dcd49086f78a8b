// Parts of a step that several layouts share.
//
// The layouts of a search differ in more than what a part of their step does: how data parallelism splits
// into shards and replicas does not matter to a stage that keeps whole parameters and gradients, and the
// update knows neither the attention nor the micro-batch. So an Evaluator makes and replays the plan of such
// a part once.
#pragma once

#include "shared/base/digest.h"
#include "shared/transformer/step_plan.h"

namespace cp::sim {

// Whether layouts are likely to share the part: one that holds the whole step but for its update is its
// layout's own.
bool may_be_shared(StepPart part);

// A digest of all that the timing of the part's plan on rank `self` depends on, beside model and workload: of
// two requests that differ in their layouts alone, equal keys mean equal clocks (StepClock). Names, labels,
// and the sizes of buffers that the part does not use as a whole may differ. For parts of training that
// may_be_shared().
Digest part_key(const StepRequest& request, StepPart part, int stage, Rank self);

}  // namespace cp::sim
