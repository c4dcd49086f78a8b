// The plan of one layer alone: what the layer's writers write of it, without what gathers its parameters and
// reduces its gradients, and without what stands before the layer and behind it. What reads a step layer by
// layer reads these: a bound of its time (sim/planner/search/layer_reading.h).
#pragma once

#include <cstdint>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/step_writer.h"

namespace cp {

enum class LayerPass : std::uint8_t { forward, backward };

struct LayerPlan {
  Plan plan;
  // Of the layer's whole parameters, those of its experts, and the gradients of both; -1: there are none, as
  // there are no gradients forward.
  BufferId weights = -1, experts = -1, d_weights = -1, d_experts = -1;
  std::vector<MixerSteps> mixers;  // what attention or a recurrence does
};

// Of rank 0, for shapes. The request's model must have this one layer, and no prediction layers; its layout
// no stages. Backward, what the layout's recomputation leaves out is computed again first; gradients are
// written over what was there. Serving has no backward pass. Nothing is refused here: a caller whose request
// is made from a legal one knows that it is. `use` is what attention takes of
// latent rows: alone, without other ranks, it would take nothing in training.
LayerPlan layer_plan(const StepRequest& request, LatentUse use, LayerPass pass, MixerPlanCache& cache);

}  // namespace cp
