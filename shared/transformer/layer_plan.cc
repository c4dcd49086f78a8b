#include "shared/transformer/layer_plan.h"

#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/temporaries.h"
#include "shared/transformer/activations.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/layer_backward.h"
#include "shared/transformer/layer_forward.h"
#include "shared/transformer/layer_loops.h"
#include "shared/transformer/loss_writer.h"
#include "shared/transformer/prediction_writer.h"

namespace cp {
namespace {

// One buffer of the caller, whole.
BufferId whole(StepWriter& writer, BufferKind kind, const char* name, std::int64_t numel) {
  if (numel == 0) return -1;
  PlanBuilder& builder = writer.builder();
  return kind == BufferKind::input ? builder.input(name, writer.dtype(), numel)
                                   : builder.output(name, writer.dtype(), numel);
}

// [tokens_tp, hidden].
View rows_of_caller(StepWriter& writer, BufferKind kind, const char* name) {
  const StepContext& context = writer.context();
  const Shape shape{context.tokens_tp, context.hidden};
  PlanBuilder& builder = writer.builder();
  const std::int64_t rows = numel(shape);
  const BufferId buffer = kind == BufferKind::input    ? builder.input(name, writer.dtype(), rows)
                          : kind == BufferKind::output ? builder.output(name, writer.dtype(), rows)
                                                       : builder.inout(name, writer.dtype(), rows);
  return dense_view(buffer, 0, shape);
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
  View hands_on;
  if (forward) {
    std::optional<KvCache> kv_cache;
    if (!context.training) kv_cache.emplace(writer);
    hands_on = activations.x(place.output);
    LayerForward(writer, activations, kv_cache ? &*kv_cache : nullptr).write(place, weights, x, hands_on);
  } else {
    made.d_weights = whole(writer, BufferKind::output, "gradients/layer", numel);
    made.d_experts = whole(writer, BufferKind::output, "gradients/experts", of_experts);
    const LayerGradients gradients{{{made.d_weights, 0, {}}}, {{made.d_experts, 0, {}}}};
    hands_on = rows_of_caller(writer, BufferKind::inout, "working/dx");
    LayerBackward(writer, activations).write(place, weights, gradients, x, hands_on);
  }
  made.mixers = writer.mixer_steps();
  made.hands_on = hands_on.buffer;
  made.plan = std::move(writer).build().plan;
  return made;
}

LayerPlan end_plan(const StepRequest& request, EndPart part) {
  MixerPlanCache no_mixers(1);
  const StepContext context(request, parts_of(request).front(), 0, 0, no_mixers);
  StepWriter writer(context);
  LayerPlan made;
  View hands_on;
  const std::int64_t table = context.embedding.numel(), of_head = context.hidden + table;
  switch (part) {
    case EndPart::embedding:
      made.weights = whole(writer, BufferKind::input, "parameters/embedding", table);
      hands_on = rows_of_caller(writer, BufferKind::output, "working/x");
      EmbeddingWriter(writer).forward({made.weights, 0, {}}, hands_on);
      break;
    case EndPart::embedding_backward:
      made.d_weights = writer.builder().inout("gradients/embedding", writer.dtype(), table);
      EmbeddingWriter(writer).backward(rows_of_caller(writer, BufferKind::input, "working/dx"),
                                       {made.d_weights, 0, {}});
      break;
    case EndPart::head: {
      made.weights = whole(writer, BufferKind::input, "parameters/head", of_head);
      const HeadPieces weights{{made.weights, 0, {}}, {made.weights, context.hidden, {}}};
      const View x = rows_of_caller(writer, BufferKind::input, "working/x");
      if (!context.training) {
        LossWriter(writer).last_logits(weights, x);
        break;
      }
      made.d_weights = whole(writer, BufferKind::output, "gradients/head", of_head);
      hands_on = rows_of_caller(writer, BufferKind::output, "working/dx");
      LossWriter(writer).write(
          {}, weights, {{{made.d_weights, 0, {}}}, {{made.d_weights, context.hidden, {}}}}, x, hands_on);
      break;
    }
    case EndPart::prediction: {
      made.weights = whole(writer, BufferKind::input, "parameters/prediction", context.prediction.numel);
      made.d_weights = whole(writer, BufferKind::output, "gradients/prediction", context.prediction.numel);
      const Window rows{whole(writer, BufferKind::input, "parameters/embedding", table), 0, {}},
          d_rows{writer.builder().inout("gradients/embedding", writer.dtype(), table), 0, {}},
          weights{made.weights, 0, {}};
      const View before = rows_of_caller(writer, BufferKind::input, "working/x");
      hands_on = rows_of_caller(writer, BufferKind::output, "working/d x");
      PredictionWriter prediction(writer, 1);
      prediction.forward(rows, weights, before);
      prediction.backward(weights, {{made.d_weights, 0, {}}}, d_rows, before,
                          rows_of_caller(writer, BufferKind::input, "working/dx"), hands_on);
      break;
    }
  }
  made.hands_on = hands_on.buffer;
  made.plan = std::move(writer).build().plan;
  return made;
}

}  // namespace cp
