// Writes the training of a layout in small, with all of its steps. What is not a training has the scenario of
// its attention instead.
#include <algorithm>

#include "shared/base/text.h"
#include "sim/planner/emit/emitters.h"
#include "sim/planner/emit/small_training.h"
#include "traces/scenario.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

std::string_view products(const EmitContext& context) {
  return context.nvfp4_products ? "nvfp4" : context.fp8_products ? "fp8" : "";
}

}  // namespace

EmittedBody emit_cprun(const EmitRequest& request) {
  const auto& [model, workload, layout, context] = request;
  if (workload.phase != Phase::training) return emit_attention(request);
  proto::Scenario scenario;
  proto::Train& train = *scenario.mutable_train();
  train = small_training(context.model, layout);
  if (model.prediction_layers > 0) train.set_mtp_layers(model.prediction_layers);
  train.set_global_batch(std::int64_t{layout.dp()} * layout.micro_batch *
                         small_accumulation(workload, layout));
  train.set_dtype(to_proto(workload.dtype)), train.set_gradient_dtype(to_proto(workload.gradient_dtype));
  train.set_optimizer(to_string(workload.optimizer));
  if (workload.attention_dropout > 0) train.set_attention_dropout(workload.attention_dropout);

  EmittedBody out;
  const auto note = [&](std::string what) { out.notes.push_back(std::move(what)); };
  note(str("the model is in small: the same kinds of layers, of widths of some tens"));
  note(str(train.global_batch(), " sequences of ", train.seq_len(), " tokens a step, where ",
           workload.global_batch, " of ", workload.seq_len, " were planned; ", train.steps(), " steps"));
  if (const std::string_view type = products(context); !type.empty())
    note(str("products are in ", name(workload.dtype), ", not in ", type));
  if (model.experts) note("experts have room for all tokens");
  out.text = write_scenario_text(scenario);
  return out;
}

}  // namespace cp::sim
