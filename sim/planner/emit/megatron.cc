// Writes flags of Megatron-LM (core 0.12 and later).
#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/base/types.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/planner/emit/emitters.h"

namespace cp::sim {
namespace {

class MegatronFlags {
 public:
  explicit MegatronFlags(const EmitRequest& request)
      : r_(request), model_(request.model), workload_(request.workload), layout_(request.layout) {}

  EmittedBody write() {
    model();
    degrees();
    context_parallel();
    sharding();
    pipeline();
    recompute();
    offloading();
    batch();
    optimizer();
    order();
    note(
        "rotary base and scaling are not among the sizes that are planned with: set --rotary-base, and "
        "--use-rope-scaling for Llama 3.1");
    return std::move(out_);
  }

 private:
  template <class... Values>
  void flag(std::string_view name, const Values&... values) {
    out_.text += str("--", name);
    ((out_.text += str(" ", values)), ...);
    out_.text += "\n";
  }
  void note(std::string what) { out_.notes.push_back(std::move(what)); }

  void model() {
    flag("num-layers", model_.layers);
    flag("hidden-size", model_.hidden);
    flag("ffn-hidden-size", model_.has(Mlp::dense) ? model_.intermediate : model_.experts->intermediate);
    flag("num-attention-heads", model_.q_heads);
    if (model_.kv_heads != model_.q_heads) {
      flag("group-query-attention");
      flag("num-query-groups", model_.kv_heads);
    }
    if (model_.latent) {
      flag("multi-latent-attention");
      if (model_.latent->q_rank > 0) flag("q-lora-rank", model_.latent->q_rank);
      flag("kv-lora-rank", model_.latent->kv_rank);
      flag("qk-head-dim", model_.head_dim - model_.latent->rope_dim);
      flag("qk-pos-emb-head-dim", model_.latent->rope_dim);
      flag("v-head-dim", model_.latent->v_head_dim);
      flag("qk-layernorm");  // the norms of the latent rows
    } else {
      flag("kv-channels", model_.head_dim);
    }
    flag("vocab-size", model_.vocab);
    flag("max-position-embeddings", std::max(model_.max_seq_len, workload_.seq_len));
    flag("position-embedding-type", "rope");
    // Both are 0.1 unless they are given (TransformerConfig).
    flag("attention-dropout", workload_.attention_dropout);
    flag("hidden-dropout", 0);
    const Numerics& numerics = model_.numerics;
    flag("normalization", numerics.norm_centered ? "LayerNorm" : "RMSNorm");
    if (numerics.norm_centered && numerics.norm_unit_offset) flag("apply-layernorm-1p");
    if (numerics.norm_centered) note("that norms are planned without the biases of LayerNorm");
    if (numerics.logit_scale != 1) note(str("that logits are multiplied with ", numerics.logit_scale));
    if (model_.gated_mlp) flag("swiglu");
    if (!model_.gated_mlp) flag("squared-relu");
    flag("disable-bias-linear");
    if (model_.qkv_bias) flag("add-qkv-bias");
    if (model_.qk_norm) flag("qk-layernorm");
    if (model_.qk_norm_of_all_heads) note("that the norms of q and k are over all heads, and not over each");
    if (model_.sinks) note("the sinks of attention");
    if (model_.softcap != 0) note(str("the cap of attention's scores at ", model_.softcap));
    if (model_.gated_attention) note("the gates of attention's output");
    layers_of_other_parts();
    if (!model_.norms_before) note("that attention and MLP have no norms before them");
    if (model_.norms_behind) note("the norms behind attention and MLP: there is no flag for them");
    if (model_.parallel_blocks) note("that attention and MLP of a layer take the same rows, side by side");
    if (!model_.tied_embeddings) flag("untie-embeddings-and-output-weights");
    windows();
    layers_without_positions();
    if (model_.prediction_layers > 0) flag("mtp-num-layers", model_.prediction_layers);
    if (!model_.experts) return;
    flag("num-experts", model_.experts->count);
    flag("moe-router-topk", model_.experts->top_k);
    flag("moe-ffn-hidden-size", model_.experts->intermediate);
    if (model_.experts->shared > 0) flag("moe-shared-expert-intermediate-size", model_.experts->shared);
    if (model_.has(Mlp::dense)) flag("moe-layer-freq", str("'", layers_with_experts(), "'"));
    flag("moe-grouped-gemm");
    flag("moe-token-dispatcher-type", "alltoall");
  }

  // A list in Python: ([0,1]*24) where layers take turns, ([0]*3+[1]*58) where they do not.
  std::string layers_with_experts() const {
    std::vector<int> has;
    for (std::int64_t layer = 0; layer < model_.layers; ++layer)
      has.push_back(model_.parts_of(model_.kinds[idx(model_.kind_of(layer))]).mlp == Mlp::experts ? 1 : 0);
    constexpr std::size_t kLongestTurn = 8;  // chosen: longer ones are no easier to read than runs
    for (std::size_t turn = 1; turn <= std::min(kLongestTurn, has.size() / 2); ++turn) {
      if (has.size() % turn == 0 &&
          std::equal(has.begin() + static_cast<std::ptrdiff_t>(turn), has.end(), has.begin()))
        return str("([",
                   join(std::vector<int>(has.begin(), has.begin() + static_cast<std::ptrdiff_t>(turn)), ","),
                   "]*", has.size() / turn, ")");
    }
    std::vector<std::string> runs;
    for (auto first = has.begin(); first != has.end();) {
      const auto last = std::find_if(first, has.end(), [&](int other) { return other != *first; });
      runs.push_back(str("[", *first, "]*", last - first));
      first = last;
    }
    return str("(", join(runs, "+"), ")");
  }

  // It has layers with a recurrence, or of one part alone, in models of another kind than these flags are of.
  void layers_of_other_parts() {
    if (model_.convolution) note("layers with a convolution: Megatron-LM has no model with them");
    std::int64_t others = 0;
    const std::vector<std::int64_t> layers = layers_of_kinds(model_);
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      const LayerParts parts = model_.parts_of(model_.kinds[kind]);
      const bool is_usual = parts.mixer == Mixer::attention && parts.mlp != Mlp::none;
      if (!is_usual && parts.mixer != Mixer::convolution) others += layers[kind];
    }
    if (others > 0)
      note(str(others,
               " layers that are not attention with an MLP: take pretrain_mamba.py with "
               "--hybrid-override-pattern"));
  }

  void layers_without_positions() {
    std::int64_t without = 0;
    const std::vector<std::int64_t> layers = layers_of_kinds(model_);
    for (std::size_t kind = 0; kind < layers.size(); ++kind)
      without += model_.kinds[kind].rotary ? 0 : layers[kind];
    if (without > 0) note(str(without, " layers without rotary positions"));
  }

  // Megatron-LM has one width of windows, and a list that says which layers have it.
  void windows() {
    std::vector<std::int64_t> widths;
    std::set<std::int64_t> chunks;
    for (const LayerKind& kind : model_.kinds) {
      if (kind.window) widths.push_back(*kind.window);
      if (kind.chunk) chunks.insert(*kind.chunk);
    }
    for (const std::int64_t chunk : chunks)
      note(str("layers that attend within chunks of ", chunk, " tokens"));
    if (widths.empty()) return;
    if (std::ranges::adjacent_find(widths, std::not_equal_to()) != widths.end()) {
      note(str("windows of ", join(widths, ", "), " tokens: there is one --window-size"));
      return;
    }
    flag("window-size", str("'(", widths.front() - 1, ", 0)'"));
    if (model_.kinds.size() == 1) return;
    std::vector<int> has_window;
    for (const int kind : model_.order) has_window.push_back(model_.kinds[idx(kind)].window ? 1 : 0);
    flag("window-attn-skip-freq", str("'[", join(has_window, ","), "]'"));
  }

  void degrees() {
    flag("tensor-model-parallel-size", layout_.tp);
    if (layout_.tp > 1 && layout_.sequence_parallel) flag("sequence-parallel");
    flag("context-parallel-size", layout_.cp);
    flag("pipeline-model-parallel-size", layout_.pp);
    if (layout_.ep > 1) {
      flag("expert-model-parallel-size", layout_.ep);
      flag("expert-tensor-parallel-size", layout_.tp);
    }
  }

  void context_parallel() {
    if (layout_.cp == 1) return;
    const int ulysses = layout_.strategy.ulysses_degree, ring = r_.ring_size();
    const std::string_view core = word_of(Framework::megatron, layout_.strategy.core);
    flag("cp-comm-type", ring == 1 ? "a2a" : ulysses > 1 ? "a2a+p2p" : core);
    if (ring > 1 && ulysses > 1) flag("hierarchical-context-parallel-sizes", ulysses, ring);
  }

  void sharding() {
    if (!r_.shards_parameters()) return;
    flag("use-distributed-optimizer");
    if (layout_.zero_stage() < 2) {
      if (layout_.dp_replicate > 1) flag("num-distributed-optimizer-instances", layout_.dp_replicate);
      return;
    }
    flag("use-megatron-fsdp");
    flag("data-parallel-sharding-strategy",
         layout_.keeps_whole_parameters() ? "optim_grads" : "optim_grads_params");
    flag("no-gradient-accumulation-fusion");
    flag("ckpt-format", "fsdp_dtensor");
    if (layout_.dp_replicate > 1) flag("num-distributed-optimizer-instances", layout_.dp_replicate);
  }

  void pipeline() {
    if (layout_.pp == 1) return;
    const std::vector<std::int64_t> layers = stage_layers(model_, layout_);
    if (std::all_of(layers.begin(), layers.end(), [&](std::int64_t n) { return n == layers.front(); })) {
      if (layout_.virtual_stages > 1) flag("num-layers-per-virtual-pipeline-stage", layers.front());
      return;
    }
    std::vector<std::string> stages;
    for (const std::int64_t count : layers) stages.push_back(str("t*", count));
    stages.front() = "E" + stages.front();
    if (model_.prediction_layers > 0) stages.back() += str("m*", model_.prediction_layers);
    stages.back() += "L";
    flag("pipeline-model-parallel-layout", str("'", join(stages, "|"), "'"));
  }

  void recompute() {
    switch (layout_.recompute.kind) {
      case Recompute::Kind::none:
        return;
      case Recompute::Kind::selective:
        flag("recompute-granularity", "selective");
        flag("recompute-modules", model_.experts ? "layernorm moe_act" : "layernorm");
        return;
      case Recompute::Kind::full:
        flag("recompute-granularity", "full");
        flag("recompute-method", "uniform");
        flag("recompute-num-layers", 1);
        return;
      case Recompute::Kind::every: {
        const std::vector<std::int64_t> layers = stage_layers(model_, layout_);
        const std::int64_t most = *std::max_element(layers.begin(), layers.end());
        flag("recompute-granularity", "full");
        flag("recompute-method", "block");
        flag("recompute-num-layers", ceil_div(most, layout_.recompute.every));
        note(str("every ", layout_.recompute.every,
                 "th layer again: it is as many layers, the first ones of each stage"));
        return;
      }
    }
  }

  void offloading() {
    if (!layout_.host_activations) return;
    const std::int64_t layers = model_.layers;
    flag("cpu-offloading-num-layers", layers - 1);
    note(str("activations of all ", layers, " layers in host memory: it is ", layers - 1,
             ", the last one's are needed at once"));
  }

  void batch() {
    flag("micro-batch-size", layout_.micro_batch);
    flag("global-batch-size", workload_.global_batch);
    flag("seq-length", workload_.seq_len);
    if (workload_.dtype == DType::bf16) flag("bf16");
    if (workload_.dtype == DType::f16) flag("fp16");
    if (workload_.gradient_dtype == DType::bf16) flag("grad-reduce-in-bf16");
    if (r_.context.fp8_products) flag("fp8-format", "hybrid");
  }

  void optimizer() {
    const Optimizer& optimizer = workload_.optimizer;
    const bool adam = optimizer.is_adam();
    flag("optimizer", adam ? "adam" : "sgd");
    if (!adam) flag("sgd-momentum", optimizer.states == 0 ? "0.0" : "0.9");
    if (adam && optimizer.state_dtype == DType::bf16) {
      flag("use-precision-aware-optimizer");
      flag("exp-avg-dtype", "bf16");
      flag("exp-avg-sq-dtype", "bf16");
    }
    if (optimizer.offload) flag("optimizer-cpu-offload");
  }

  // Megatron-LM's own order is tp-cp-ep-dp-pp, which needs no flag.
  void order() {
    if (layout_.order == AxisOrder::tp_cp_pp_dp && layout_.dp() > 1 && layout_.pp > 1)
      flag("use-tp-pp-dp-mapping");
  }

  const EmitRequest& r_;
  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  EmittedBody out_;
};

}  // namespace

EmittedBody emit_megatron(const EmitRequest& request) { return MegatronFlags(request).write(); }

}  // namespace cp::sim
