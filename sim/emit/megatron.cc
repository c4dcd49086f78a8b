// Flags of Megatron-LM (core 0.12 and later).
#include <algorithm>
#include <string_view>

#include "shared/base/text.h"
#include "shared/base/types.h"
#include "sim/emit/emitters.h"

namespace cp::sim {
namespace {

class MegatronFlags {
 public:
  explicit MegatronFlags(const EmitRequest& request)
      : r_(request), model_(request.model), workload_(request.workload), layout_(request.layout) {}

  Emitted write() {
    out_.text = str("# Megatron-LM, pretrain_gpt.py: ", headline(r_), "\n");
    model();
    degrees();
    context_parallel();
    sharding();
    pipeline();
    recompute();
    batch();
    optimizer();
    order();
    if (layout_.loss_chunks > 1) {
      cannot(
          str("the loss in ", layout_.loss_chunks,
              " chunks: logits of all rows exist at once; --cross-entropy-loss-fusion saves a copy of them"));
    }
    cannot(
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
  void cannot(std::string what) { out_.cannot.push_back(std::move(what)); }

  void model() {
    flag("num-layers", model_.layers);
    flag("hidden-size", model_.hidden);
    flag("ffn-hidden-size", model_.experts ? model_.experts->intermediate : model_.intermediate);
    flag("num-attention-heads", model_.q_heads);
    if (model_.kv_heads != model_.q_heads) {
      flag("group-query-attention");
      flag("num-query-groups", model_.kv_heads);
    }
    flag("kv-channels", model_.head_dim);
    flag("vocab-size", model_.vocab);
    flag("max-position-embeddings", std::max(model_.max_seq_len, workload_.seq_len));
    flag("position-embedding-type", "rope");
    flag("normalization", "RMSNorm");
    flag("swiglu");
    flag("disable-bias-linear");
    if (model_.qkv_bias) flag("add-qkv-bias");
    if (model_.qk_norm) flag("qk-layernorm");
    if (!model_.tied_embeddings) flag("untie-embeddings-and-output-weights");
    if (model_.window) flag("window-size", str("'(", *model_.window - 1, ", 0)'"));
    if (!model_.experts) return;
    flag("num-experts", model_.experts->count);
    flag("moe-router-topk", model_.experts->top_k);
    flag("moe-ffn-hidden-size", model_.experts->intermediate);
    flag("moe-grouped-gemm");
    flag("moe-token-dispatcher-type", "alltoall");
  }

  void degrees() {
    flag("tensor-model-parallel-size", layout_.tp);
    if (layout_.tp > 1) flag("sequence-parallel");
    if (model_.kv_heads % layout_.tp != 0) {
      cannot(str("num-query-groups=", model_.kv_heads, " shared by tensor-model-parallel-size=", layout_.tp,
                 " ranks: use a size that divides ", model_.kv_heads));
    }
    flag("context-parallel-size", layout_.cp);
    flag("pipeline-model-parallel-size", layout_.pp);
    if (layout_.ep > 1) {
      flag("expert-model-parallel-size", layout_.ep);
      flag("expert-tensor-parallel-size", layout_.tp);
    }
  }

  void context_parallel() {
    if (layout_.cp == 1) return;
    const Strategy& strategy = layout_.strategy;
    const int ulysses = strategy.ulysses_degree, ring = r_.ring_size();
    const std::string type = ring == 1 ? "a2a" : ulysses > 1 ? "a2a+p2p" : ring_type();
    flag("cp-comm-type", type);
    if (ring > 1 && ulysses > 1) {
      flag("hierarchical-context-parallel-sizes", ulysses, ring);
      if (strategy.core != Core::ring)
        cannot(str("a core other than the ring between Ulysses groups: ", type, " is"));
      if (!strategy.ulysses_inner)
        cannot("rings of neighbours: with a2a+p2p neighbours form the all-to-all groups");
    }
    const std::int64_t groups = std::max<std::int64_t>(1, model_.kv_heads / layout_.tp);
    if (ulysses > 1 && groups % ulysses != 0) {
      cannot(str("an all-to-all of ", ulysses, " ranks over the ", groups,
                 " query groups of each: its degree must divide them"));
    }
    if (ring > 1 && strategy.balance.kind != Balance::Kind::head_tail) {
      cannot(str("balance ", to_string(strategy.balance), ": batches are always split head_tail"));
    }
  }

  std::string ring_type() {
    const Strategy& strategy = layout_.strategy;
    switch (strategy.core) {
      case Core::all_gather:
        return "allgather";
      case Core::need_only:
        cannot("need_only: allgather brings every rank all keys and values instead");
        return "allgather";
      case Core::pass_q:
        cannot("pass_q: p2p passes keys and values instead of queries");
        return "p2p";
      case Core::ring:
        if (strategy.inner_ring > 1)
          cannot(str("double rings of ", strategy.inner_ring, ": p2p is one ring"));
        if (strategy.rotation == Strategy::Rotation::all_gather) {
          cannot("rotation=all_gather: p2p passes block by block");
        }
        return "p2p";
    }
    return "p2p";
  }

  void sharding() {
    if (!r_.shards_parameters()) return;
    flag("use-distributed-optimizer");
    flag("use-megatron-fsdp");
    flag("data-parallel-sharding-strategy", "optim_grads_params");
    flag("no-gradient-accumulation-fusion");
    flag("ckpt-format", "fsdp_dtensor");
    if (layout_.dp_replicate > 1) flag("num-distributed-optimizer-instances", layout_.dp_replicate);
    if (layout_.sharding == ShardingGroup::dp_shard) {
      cannot(str("sharding=dp_shard: parameters are sharded over context-parallel ranks, too, ",
                 layout_.dp_shard * layout_.cp, " ranks instead of ", layout_.dp_shard));
    }
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
        if (!model_.experts) {
          cannot(
              "the activation function of a dense MLP again without its products: it is kept; the module mlp "
              "would "
              "compute the products again, too");
        }
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
        cannot(str("every ", layout_.recompute.every,
                   "th layer again: it is as many layers, the first ones of each stage"));
        return;
      }
    }
  }

  void batch() {
    flag("micro-batch-size", layout_.micro_batch);
    flag("global-batch-size", workload_.global_batch);
    flag("seq-length", workload_.seq_len);
    if (workload_.dtype == DType::bf16) flag("bf16");
    if (workload_.dtype == DType::f16) flag("fp16");
    if (workload_.gradient_dtype == DType::bf16) flag("grad-reduce-in-bf16");
    if (workload_.gradient_dtype == DType::f16) cannot("gradients in f16: they are added up in f32");
  }

  void optimizer() {
    const Optimizer& optimizer = workload_.optimizer;
    const bool adam = optimizer.name.starts_with("adamw");
    flag("optimizer", adam ? "adam" : "sgd");
    if (!adam) flag("sgd-momentum", optimizer.states == 0 ? "0.0" : "0.9");
    if (adam && optimizer.state_dtype == DType::bf16) {
      flag("use-precision-aware-optimizer");
      flag("exp-avg-dtype", "bf16");
      flag("exp-avg-sq-dtype", "bf16");
    }
    if (optimizer.offload) flag("optimizer-cpu-offload");
  }

  void order() {
    switch (layout_.order) {
      case AxisOrder::tp_cp_dp_pp:
        return;  // its own order, tp-cp-ep-dp-pp
      case AxisOrder::tp_cp_pp_dp:
        if (layout_.dp() > 1 && layout_.pp > 1) flag("use-tp-pp-dp-mapping");
        return;
      case AxisOrder::cp_tp_dp_pp:
        if (layout_.cp > 1 && layout_.tp > 1)
          cannot("order cp-tp-dp-pp: neighbours differ in tp first; it is tp-cp-dp-pp");
        return;
      case AxisOrder::tp_dp_cp_pp:
        if (layout_.cp > 1 && layout_.dp() > 1)
          cannot("order tp-dp-cp-pp: cp ranks are nearer than dp ranks; it is tp-cp-dp-pp");
        return;
    }
  }

  const EmitRequest& r_;
  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  Emitted out_;
};

}  // namespace

Emitted emit_megatron(const EmitRequest& request) { return MegatronFlags(request).write(); }

}  // namespace cp::sim
