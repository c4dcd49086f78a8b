#include "shared/transformer/layer_plan.h"

#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/activations.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/layer_backward.h"
#include "shared/transformer/layer_forward.h"
#include "shared/transformer/layer_loops.h"

namespace cp {
namespace {

// One buffer of the caller, whole.
BufferId whole(StepWriter& writer, BufferKind kind, const char* name, std::int64_t numel) {
  if (numel == 0) return -1;
  PlanBuilder& builder = writer.builder();
  return kind == BufferKind::input ? builder.input(name, writer.dtype(), numel)
                                   : builder.output(name, writer.dtype(), numel);
}

LayerPlace only_layer(const StepContext& context, LayerPass pass) {
  const Recompute& recompute = context.layout.recompute;
  return (pass == LayerPass::forward ? forward_loops(context.stage_layers(), recompute)
                                     : backward_loops(context.stage_layers(), recompute))
      .front()
      .body.front();
}

}  // namespace

LayerPlan layer_plan(const StepRequest& request, LatentUse use, LayerPass pass, MixerPlanCache& cache) {
  CP_INVARIANT(request.model.layers == 1 && request.layout.pp == 1, "a layer alone, and not one of ",
               request.model.layers, " on ", request.layout.pp, " stages");
  const bool forward = pass == LayerPass::forward;
  StepContext context(request, parts_of(request).front(), 0, 0, cache);
  if (use == LatentUse::rows && context.latent != use) {
    context.latent = use;
    for (AttentionRequest& attention : context.attention)
      attention.problem.latent = {request.model.latent->kv_rank, request.model.latent->rope_dim};
  }
  StepWriter writer(context);
  const LayerPlace place = only_layer(context, pass);
  const std::int64_t numel = context.layer[place.parts].numel,
                     of_experts = place.parts.mlp == Mlp::experts ? context.experts.numel : 0;
  LayerPlan made;
  made.weights = whole(writer, BufferKind::input, "parameters/layer", numel);
  made.experts = whole(writer, BufferKind::input, "parameters/experts", of_experts);
  const LayerPieces weights{{made.weights, 0, {}}, {made.experts, 0, {}}};
  Activations activations(writer, !context.training ? BufferKind::temporary
                                  : forward         ? BufferKind::output
                                                    : BufferKind::input);
  const View x = activations.x(place.input);
  if (forward && context.training) {
    LayerForward(writer, activations, nullptr).write(place, weights, x, activations.x(place.output));
  } else if (forward) {
    KvCache kv_cache(writer);
    LayerForward(writer, activations, &kv_cache).write(place, weights, x, activations.x(place.output));
  } else {
    made.d_weights = whole(writer, BufferKind::output, "gradients/layer", numel);
    made.d_experts = whole(writer, BufferKind::output, "gradients/experts", of_experts);
    const LayerGradients gradients{{{made.d_weights, 0, {}}}, {{made.d_experts, 0, {}}}};
    const std::int64_t rows = context.tokens_tp * context.hidden;
    const BufferId dx = writer.builder().inout("working/dx", writer.dtype(), rows);
    LayerBackward(writer, activations)
        .write(place, weights, gradients, x, dense_view(dx, 0, {context.tokens_tp, context.hidden}));
  }
  made.mixers = writer.mixer_steps();
  made.plan = std::move(writer).build();
  return made;
}

}  // namespace cp
