#include "sim/scenario/model_step.h"

#include <algorithm>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/scenario/read_values.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

Phase phase_of(proto::PlanLayouts::Phase phase) {
  switch (phase) {
    case proto::PlanLayouts::prefill:
      return Phase::prefill;
    case proto::PlanLayouts::decode:
      return Phase::decode;
    default:
      return Phase::training;
  }
}

// Scaled so that it shows in sequences as short as those of cases: some of few pairs are between the limits.
RotaryFrequencies rotary_of(const proto::ModelStep& step) {
  RotaryFrequencies rotary;
  if (step.rotary_scaling().empty()) return rotary;
  constexpr RotaryScaling kKnown[] = {RotaryScaling::linear, RotaryScaling::llama3, RotaryScaling::yarn};
  for (const RotaryScaling scaling : kKnown) {
    if (name(scaling) == step.rotary_scaling()) rotary.scaling = scaling;
  }
  if (rotary.scaling == RotaryScaling::none)
    throw InvalidInput(str("rotary_scaling \"", step.rotary_scaling(), "\" is not known; use linear, ",
                           "llama3 or yarn, or leave it out"));
  rotary.factor = 4, rotary.original = 16;
  // Norms behind the rotation would take the magnitude away.
  if (rotary.scaling == RotaryScaling::yarn && !step.qk_norm_behind_rotary()) rotary.magnitude = 1.25;
  return rotary;
}

Transformer model_of(const proto::ModelStep& step) {
  Transformer model;
  model.name = "model of a case";
  model.hidden = step.hidden(), model.layers = step.layers();
  model.q_heads = step.q_heads(), model.kv_heads = step.kv_heads(), model.head_dim = step.head_dim();
  model.intermediate = step.intermediate(), model.vocab = step.vocab();
  model.tied_embeddings = step.tied_embeddings(), model.qkv_bias = step.qkv_bias(),
  model.qk_norm = step.qk_norm();
  model.norms_before = !step.no_norms_before(), model.norms_behind = step.norms_behind();
  model.parallel_blocks = step.parallel_blocks(), model.numerics.norm_centered = step.norm_centered();
  if (step.logit_scale() != 0) model.numerics.logit_scale = step.logit_scale();
  model.qk_norm_of_all_heads = step.qk_norm_of_all_heads();
  if (step.has_rotary_share()) model.numerics.rotary_share = step.rotary_share();
  model.sinks = step.sinks(), model.softcap = step.softcap();
  model.prediction_layers = step.prediction_layers();
  model.gated_attention = step.gated_attention(), model.gated_mlp = !step.ungated_mlp();
  model.out_bias = step.out_bias(), model.qk_norm_behind_rotary = step.qk_norm_behind_rotary();
  model.numerics.activation_limit = step.activation_limit();
  model.numerics.weighs_expert_inputs = step.weighs_expert_inputs();
  model.numerics.temperature = {step.temperature(), 8};
  model.numerics.rotary = rotary_of(step);
  if (step.score_scale() != 0) model.numerics.score_scale = step.score_scale();
  if (step.latent_kv_rank() > 0) {
    model.latent =
        Latent{step.latent_q_rank(), step.latent_kv_rank(), step.latent_rope_dim(), step.latent_v_head_dim()};
  }
  if (step.has_window()) model.kinds.front().window = step.window();
  if (step.experts() > 0)
    model.experts = Experts{
        step.experts(),     step.top_k(),         step.expert_intermediate(), step.shared_expert(),
        step.shared_gate(), step.expert_biases(), step.corrects_scores(),     step.moves_corrections()};
  if (const std::int64_t groups = step.router_groups(); groups > 0) {
    RouterRule& router = model.numerics.router;
    router.sigmoid = true, router.groups = groups, router.top_groups = (groups + 1) / 2;
  }
  // The number of layers, above all.
  validate_model(model);
  if (step.recurrence_value_heads() > 0) {
    model.recurrence = Recurrence{step.recurrence_decay() ? RecurrenceRule::decay : RecurrenceRule::delta,
                                  step.recurrence_key_heads(),
                                  step.recurrence_value_heads(),
                                  step.recurrence_key_dim(),
                                  step.recurrence_value_dim(),
                                  step.recurrence_convolution(),
                                  step.recurrence_decay()};
  }
  if (step.convolution_taps() > 0)
    model.convolution = ShortConvolution{step.convolution_taps(), step.convolution_bias()};
  if (!step.kinds().empty()) {
    std::vector<LayerKind> layers;
    for (std::int64_t layer = 0; layer < step.layers(); ++layer) {
      const auto& kind = step.kinds(static_cast<int>(layer % step.kinds_size()));
      LayerKind& own = layers.emplace_back();
      if (kind.has_window()) own.window = kind.window();
      if (kind.has_chunk()) own.chunk = kind.chunk();
      own.dense = kind.dense(), own.has_mlp = !kind.no_mlp(), own.rotary = !kind.no_rotary();
      own.mixer = kind.recurrence()    ? Mixer::recurrence
                  : kind.convolution() ? Mixer::convolution
                  : kind.no_mixer()    ? Mixer::none
                                       : Mixer::attention;
    }
    set_layers(model, layers);
  }
  const bool windows = std::any_of(model.kinds.begin(), model.kinds.end(),
                                   [](const LayerKind& kind) { return kind.window.has_value(); });
  if (windows && step.window_theta() != 0) {
    RotaryFrequencies& rotary = model.numerics.window_rotary.emplace();
    rotary.theta = step.window_theta();
  }
  validate_model(model);
  return model;
}

}  // namespace

StepRequest make_step_request(const proto::ModelStep& step) {
  const FieldPath path("model");
  StepRequest request{model_of(step), {}, {}};
  Workload& workload = request.workload;
  workload.phase = phase_of(step.phase());
  workload.seq_len = step.seq_len(), workload.global_batch = step.global_batch();
  workload.cached = step.cached(), workload.new_tokens = step.new_tokens();
  if (step.documents().find(';') != std::string::npos) {
    for (const std::string_view list : split(step.documents(), ';'))
      workload.cu_seqlens_of_sequence.push_back(parse_ints(std::string(list), '/', "document"));
  } else if (!step.documents().empty()) {
    workload.cu_seqlens = parse_ints(step.documents(), '/', "document");
  }
  if (step.has_expert_imbalance()) workload.expert_imbalance = step.expert_imbalance();
  workload.attention_dropout = step.attention_dropout();
  if (step.dtype() != 0) workload.dtype = from_proto(step.dtype(), {path, "dtype"});
  if (step.kv_dtype() != 0) workload.kv_dtype = from_proto(step.kv_dtype(), {path, "kv_dtype"});
  if (step.gradient_dtype() != 0)
    workload.gradient_dtype = from_proto(step.gradient_dtype(), {path, "gradient_dtype"});
  if (!step.optimizer().empty())
    workload.optimizer =
        value_of("optimizer", step.optimizer(), [&] { return parse_optimizer(step.optimizer()); });
  validate_workload(workload);
  if (!step.layout().empty())
    request.layout = value_of("layout", step.layout(), [&] { return parse_parallel_layout(step.layout()); });
  return request;
}

}  // namespace cp::sim
