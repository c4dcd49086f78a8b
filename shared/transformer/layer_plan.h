// The plans of one layer alone, and of what stands before layers and behind them: what their writers write,
// without what gathers parameters and reduces gradients. What reads a step piece by piece reads these: a
// bound of its time (sim/planner/search/layer_reading.h).
#pragma once

#include <cstdint>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/step_writer.h"

namespace cp {

enum class LayerPass : std::uint8_t { forward, backward };

struct LayerPlan {
  Plan plan;  // whose temporaries have no places
  // Of the layer's whole parameters, those of its experts, and the gradients of both; -1: there are none, as
  // there are no gradients forward.
  BufferId weights = -1, experts = -1, d_weights = -1, d_experts = -1;
  std::vector<MixerSteps> mixers;  // what spliced plans of mixers do
  BufferId hands_on = -1;          // what the next piece of the step takes
};

// Of rank 0, for shapes. The request's model must have this one layer, and no prediction layers; its layout
// no stages. Backward, what the layout's recomputation leaves out is computed again first; gradients are
// written over what was there. Serving has no backward pass. Nothing is refused here: a caller whose request
// is made from a legal one knows that it is. `use` is what attention takes of
// latent rows: alone, without other ranks, it would take nothing in training.
LayerPlan layer_plan(const StepRequest& request, LatentUse use, LayerPass pass, MixerPlanCache& cache);

// The ends of a step's layers.
//   embedding           looks rows up in the table
//   embedding_backward  adds to its gradient
//   head                final norm, head and loss, forward and backward; in serving the last rows' logits
//   prediction          what a prediction layer has beside its layer and its loss, forward and backward one
//                       behind the other, though layer and loss come between them
enum class EndPart : std::uint8_t { embedding, embedding_backward, head, prediction };
// The same of one of them. Serving has an embedding and a head.
LayerPlan end_plan(const StepRequest& request, EndPart part);

}  // namespace cp
