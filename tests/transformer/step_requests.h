// Small models on small layouts, and the plans of all their ranks.
#pragma once

#include <algorithm>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include "shared/base/index.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/step_plan.h"
#include "tests/support/any_case.h"

namespace cp {

inline void showValue(const StepRequest& request, std::ostream& out) {
  const Transformer& model = request.model;
  const Workload& workload = request.workload;
  out << to_string(request.layout) << ": " << name(workload.phase) << " of " << workload.seq_len
      << " tokens, cached " << workload.cached << ", new " << workload.new_tokens << ", batch "
      << workload.global_batch << ", " << name(workload.dtype) << ", gradients "
      << name(workload.gradient_dtype) << ", cache " << name(workload.kv_dtype) << ", "
      << to_string(workload.optimizer) << ", imbalance " << workload.expert_imbalance << "; hidden "
      << model.hidden << ", " << model.layers << " layers, " << model.q_heads << " heads (" << model.kv_heads
      << " kv), vocab " << model.vocab << (model.tied_embeddings ? ", tied" : "")
      << (model.qkv_bias ? ", bias" : "") << (model.qk_norm ? ", norms of q and k" : "")
      << (model.qk_norm_of_all_heads ? " over all heads" : "")
      << (model.qk_norm_behind_rotary ? " without weights" : "")
      << (model.out_bias ? ", bias of outputs" : "") << (model.norms_behind ? ", norms behind" : "")
      << (model.norms_before ? "" : " alone") << (model.parallel_blocks ? ", parallel blocks" : "")
      << (model.sinks ? ", sinks" : "") << (model.softcap > 0 ? ", capped scores" : "")
      << (model.gated_attention ? ", gated attention" : "") << (model.gated_mlp ? "" : ", two matrices");
  if (model.recurrence) {
    const Recurrence& r = *model.recurrence;
    out << ", recurrence " << name(r.rule) << " of " << r.key_heads << "/" << r.value_heads << " heads, "
        << r.key_dim << "/" << r.value_dim << ", convolution " << r.convolution
        << (r.convolution_bias ? " with bias" : "");
  }
  if (model.convolution)
    out << ", convolution of " << model.convolution->taps << (model.convolution->bias ? " with biases" : "");
  if (model.latent) {
    out << ", latent rows of " << model.latent->q_rank << " and " << model.latent->kv_rank << " + "
        << model.latent->rope_dim << ", values of " << model.latent->v_head_dim;
  }
  const std::vector<std::int64_t> layers = layers_of_kinds(model);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [window, chunk, dense, mixer, has_mlp, rotary] = model.kinds[i];
    out << ", " << layers[i] << " layers of window " << window.value_or(0) << ", chunk " << chunk.value_or(0)
        << (dense ? " without experts" : "") << (has_mlp ? "" : " without an MLP")
        << (rotary ? "" : " without positions");
    if (mixer != Mixer::attention) out << " with " << name(mixer) << " in attention's place";
  }
  if (model.experts) {
    out << ", " << model.experts->top_k << " of " << model.experts->count << " experts";
    if (model.experts->shared > 0) out << " beside a shared MLP of " << model.experts->shared;
    out << (model.experts->shared_gate ? " with a gate" : "") << (model.experts->biases ? ", biases" : "")
        << (model.experts->corrects_scores ? ", corrected scores" : "")
        << (model.experts->moves_corrections ? ", which move" : "");
  }
  if (model.prediction_layers > 0) out << ", " << model.prediction_layers << " prediction layers";
}

}  // namespace cp

namespace cp::testing {

inline Transformer small_model() {
  Transformer model;
  model.name = "small";
  model.hidden = 32, model.layers = 3;
  model.q_heads = 4, model.kv_heads = 2, model.head_dim = 8;
  model.intermediate = 48, model.vocab = 50;
  return model;
}

inline StepRequest small_request(std::string_view layout) {
  StepRequest request{small_model(), {}, parse_parallel_layout(layout)};
  request.workload.seq_len = 24;
  request.workload.global_batch = request.layout.dp() * request.layout.micro_batch;
  return request;
}

// ---- any layout of any small model ----

template <class... Values>
auto any_of(Values... values) {
  return *rc::gen::element(values...);
}

// Up to three kinds, in turn, behind a few layers of the first one. Mixers beside attention are any of these.
inline std::vector<LayerKind> any_layers(std::int64_t count, bool has_experts,
                                         const std::vector<Mixer>& mixers) {
  std::vector<LayerKind> in_turn(static_cast<std::size_t>(any_of(1, 2, 3)));
  for (LayerKind& kind : in_turn) {
    if (any_of(true, false)) kind.window = *rc::gen::inRange(1, 30);
    if (any_of(true, false, false)) kind.chunk = *rc::gen::inRange(1, 30);
    kind.dense = has_experts && any_of(true, false);
    kind.rotary = any_of(true, true, false);
  }
  // The first kind stays as it is: a model attends somewhere.
  for (std::size_t i = 1; i < in_turn.size(); ++i) {
    LayerKind& kind = in_turn[i];
    if (!mixers.empty() && (i == 1 || any_of(true, false))) kind.mixer = *rc::gen::elementOf(mixers);
    if (any_of(0, 0, 1) == 1) kind.has_mlp = kind.dense = false;
    if (kind.has_mlp && any_of(0, 0, 0, 1) == 1 && i > 1) kind.mixer = Mixer::none;
    if (kind.mixer != Mixer::attention) kind.window.reset(), kind.chunk.reset(), kind.rotary = true;
  }
  if (has_experts) in_turn.front().dense = false;
  std::vector<LayerKind> layers(static_cast<std::size_t>(any_of(0, 0, 1, 2)), in_turn.front());
  for (std::size_t layer = 0; std::ssize(layers) < count; ++layer)
    layers.push_back(in_turn[layer % in_turn.size()]);
  layers.resize(static_cast<std::size_t>(count));
  return layers;
}

// Its layers, all with positions.
inline std::vector<LayerKind> with_positions(const Transformer& model) {
  std::vector<LayerKind> layers;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    layers.push_back(model.kinds[idx(model.kind_of(layer))]);
    layers.back().rotary = true;
  }
  return layers;
}

inline Transformer any_model() {
  Transformer model = small_model();
  model.hidden = any_of(32, 40, 64), model.layers = *rc::gen::inRange(2, 6);
  model.kv_heads = any_of(1, 2, 4), model.q_heads = 4;
  model.vocab = any_of(50, 64);
  model.tied_embeddings = any_of(true, false), model.qkv_bias = any_of(true, false);
  model.qk_norm = any_of(true, false);
  model.norms_behind = any_of(true, false);
  model.norms_before = !model.norms_behind || any_of(true, false);
  if (any_of(0, 0, 0, 1) == 1) {
    model.kv_heads = model.q_heads, model.qkv_bias = model.qk_norm = false;
    const std::int64_t rope_dim = model.head_dim == 1 ? 1 : model.head_dim / 2;
    model.latent = Latent{any_of(0, 12, 40), any_of(8, 20), rope_dim, any_of(4, 8, 12)};
  }
  if (any_of(0, 0, 1) == 1) model.experts = Experts{4, any_of(1, 2), 24, any_of(0, 0, 16, 40)};
  if (any_of(0, 0, 1) == 1) set_layers(model, any_layers(model.layers, model.experts.has_value(), {}));
  model.gated_mlp = any_of(true, true, false);
  model.qk_norm_of_all_heads = model.qk_norm && any_of(true, false);
  model.sinks = any_of(true, false, false), model.softcap = any_of(0.0, 0.0, 30.0);
  model.gated_attention = !model.latent && any_of(true, false, false);
  if (any_of(0, 0, 1) == 1) {
    Recurrence recurrence{any_of(RecurrenceRule::delta, RecurrenceRule::decay),
                          any_of(4, 8),
                          0,
                          any_of(4, 8),
                          any_of(4, 16),
                          any_of(1, 2, 4),
                          any_of(true, false)};
    recurrence.value_heads = recurrence.key_heads * any_of(1, 2);
    const std::vector<std::vector<Mixer>> mixers{
        {Mixer::recurrence}, {Mixer::convolution}, {Mixer::recurrence, Mixer::convolution}};
    set_layers(model, any_layers(model.layers, model.experts.has_value(), *rc::gen::elementOf(mixers)));
    model.recurrence = recurrence, model.convolution = ShortConvolution{any_of(1, 2, 3), any_of(true, false)};
    forget_unused_mixers(model);
  }
  const auto has_both = [](const LayerKind& kind) { return kind.mixer == Mixer::attention && kind.has_mlp; };
  model.parallel_blocks = !model.norms_behind && !model.latent &&
                          std::all_of(model.kinds.begin(), model.kinds.end(), has_both) &&
                          any_of(true, false, false);
  model.prediction_layers = any_of(0, 0, 1, 2);
  model.out_bias = !model.latent && any_of(true, false);
  model.qk_norm_behind_rotary = model.qk_norm && !model.qk_norm_of_all_heads && any_of(true, false);
  if (model.latent) set_layers(model, with_positions(model));
  if (model.experts) {
    model.experts->shared_gate = model.experts->shared > 0 && any_of(true, false);
    model.experts->biases = any_of(true, false);
    model.experts->corrects_scores = any_of(true, false);
    model.experts->moves_corrections = model.experts->corrects_scores && any_of(true, false);
  }
  const bool windows = std::any_of(model.kinds.begin(), model.kinds.end(),
                                   [](const LayerKind& kind) { return kind.window.has_value(); });
  if (windows && any_of(true, false)) model.numerics.window_rotary.emplace().theta = 100;
  model.numerics.score_scale = any_of(1.0, 1.0, 0.5);
  return model;
}

inline ParallelLayout any_layout(const Transformer& model) {
  ParallelLayout layout;
  layout.dp_replicate = any_of(1, 1, 2), layout.dp_shard = any_of(1, 2);
  layout.tp = any_of(1, 1, 2, 4), layout.cp = any_of(1, 2, 3, 4), layout.pp = any_of(1, 1, 2);
  if (model.experts) layout.ep = any_of(1, 2, 4);
  layout.micro_batch = any_of(1, 2), layout.loss_chunks = any_of(1, 1, 2, 3, 4);
  layout.sequence_parallel = layout.tp == 1 || any_of(true, false);
  if (!model.experts) layout.mlp_chunks = any_of(1, 1, 2, 3);
  layout.host_activations = any_of(false, false, true);
  layout.order = *rc::gen::elementOf(axis_orders());
  layout.sharding =
      layout.cp > 1 && any_of(true, false) ? ShardingGroup::dp_shard : ShardingGroup::dp_shard_cp;
  layout.zero = layout.sharding_size() == 1 ? 0 : layout.pp > 1 ? any_of(0, 1) : any_of(0, 0, 1, 2);
  if (layout.sharding_size() > 1 && layout.zero_stage() == 3) {
    layout.reshard = layout.sharding_size() % 4 == 0 ? any_of(0, 0, 1, 2) : any_of(0, 0, 1);
    layout.sync_once = any_of(0, 0, 1) == 1;
    if (layout.reshard != 1) layout.prefetch = any_of(1, 1, 0, 2, 3);
    if (model.prediction_layers == 0) layout.bucket = any_of(1, 1, 2, 3);
    layout.threshold = any_of(0, 0, 40, 1000, 100000);
  }
  layout.recompute =
      any_of(Recompute{}, Recompute{Recompute::Kind::selective, 1}, Recompute{Recompute::Kind::full, 1},
             Recompute{Recompute::Kind::every, 2}, Recompute{Recompute::Kind::every, 3});
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 64, problem.q_heads = 4;
  if (layout.cp > 1) layout.strategy = *rc::gen::elementOf(standard_strategies(problem, layout.cp));
  const auto has_window = [](const LayerKind& kind) { return kind.window || kind.chunk; };
  if (layout.cp > 1 && std::any_of(model.kinds.begin(), model.kinds.end(), has_window) && any_of(true, false))
    layout.window_core = any_of(Core::need_only, Core::need_only, Core::all_gather);
  if (layout.cp > 1 && model.latent) layout.keys = any_of(Strategy::Keys::heads, Strategy::Keys::latent);
  if (layout.cp > 1 && model.recurrence) layout.scan = *rc::gen::elementOf(state_scans());
  const Balance head_tail{Balance::Kind::head_tail}, contiguous{};
  const Balance& balance = layout.strategy.balance;
  if (layout.cp > layout.strategy.ulysses_degree && (balance == head_tail || balance == contiguous)) {
    const Balance other = balance == head_tail ? contiguous : head_tail;
    if (std::any_of(model.kinds.begin(), model.kinds.end(), has_window) && any_of(true, false))
      layout.window_balance = other;
    if (model.recurrence && any_of(true, false)) layout.scan_balance = other;
  }
  return layout;
}

// One that is legal.
inline StepRequest any_request() {
  return pick_case("request", [] {
    StepRequest request{any_model(), {}, {}};
    request.layout = any_layout(request.model);
    Workload& workload = request.workload;
    workload.phase = any_of(Phase::training, Phase::training, Phase::prefill, Phase::decode);
    workload.seq_len = *rc::gen::inRange(16, 41);
    if (workload.phase == Phase::prefill) workload.cached = any_of(0, 5);
    if (workload.phase == Phase::decode) workload.cached = workload.seq_len - 1, workload.new_tokens = 1;
    if (!is_scan_of(workload, request.layout.scan)) request.layout.scan = StateScan::all_gather;
    if (workload.phase != Phase::training) {
      request.model.prediction_layers = 0;
      request.layout.recompute = {}, request.layout.loss_chunks = 1, request.layout.dp_shard = 1;
      request.layout.zero = 0, request.layout.mlp_chunks = 1, request.layout.host_activations = false;
      static_cast<ShardChoices&>(request.layout) = {};
      request.layout.window_balance.reset(), request.layout.scan_balance.reset();
      workload.kv_dtype = any_of(DType::bf16, DType::bf16, DType::f16);
    }
    workload.global_batch = request.layout.dp() * request.layout.micro_batch;
    workload.dtype = any_of(DType::bf16, DType::bf16, DType::f32);
    workload.gradient_dtype = any_of(DType::f32, DType::bf16);
    workload.optimizer = parse_optimizer(any_of("adamw", "adamw:offload", "sgd"));
    workload.expert_imbalance = any_of(1.0, 1.3);
    RC_PRE(!refuse(request.model, workload, request.layout));
    return request;
  });
}

}  // namespace cp::testing
