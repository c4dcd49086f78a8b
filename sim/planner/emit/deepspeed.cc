// Writes a configuration of DeepSpeed, as JSON.
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/planner/emit/emitters.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

class DeepspeedConfig {
 public:
  explicit DeepspeedConfig(const EmitRequest& request)
      : r_(request), workload_(request.workload), layout_(request.layout) {}

  EmittedBody write() {
    json_["train_batch_size"] = workload_.global_batch;
    json_["train_micro_batch_size_per_gpu"] = layout_.micro_batch;
    json_["gradient_accumulation_steps"] = accumulation(workload_, layout_);
    zero();
    dtypes();
    optimizer();
    sequence();
    if (layout_.tp > 1) json_["tensor_parallel"]["autotp_size"] = layout_.tp;
    left_to_the_program();
    out_.text = json_.dump(2) + "\n";
    return std::move(out_);
  }

 private:
  void note(std::string what) { out_.notes.push_back(std::move(what)); }

  void zero() {
    ordered_json& zero = json_["zero_optimization"];
    const bool offload = workload_.optimizer.offload;
    zero["stage"] = r_.shards_parameters() ? layout_.zero_stage() : offload ? 1 : 0;
    if (offload && !r_.shards_parameters() && layout_.dp() > 1) {
      note(
          "states of every replica in host memory: stage 1, which offloads them, splits them among replicas");
    }
    if (offload) zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
    if (!r_.shards_parameters() || layout_.keeps_whole_parameters()) return replicas();
    if (layout_.dp_replicate > 1) {
      zero["mics_shard_size"] = layout_.sharding_size();
      note(
          "replicas of sharded parameters: mics_shard_size takes effect in a model made under "
          "deepspeed.zero.MiCS_Init");
    }
  }

  void replicas() {
    if (!r_.shards_parameters() || layout_.dp_replicate == 1) return;
    note(str("replicas of shards: stage ", layout_.zero_stage(), " shares over all ", layout_.dp(),
             " data-parallel ranks"));
  }

  void dtypes() {
    if (workload_.dtype == DType::bf16) json_["bf16"]["enabled"] = true;
    if (workload_.dtype == DType::f16) json_["fp16"]["enabled"] = true;
    const DType gradients = workload_.gradient_dtype;
    json_["data_types"]["grad_accum_dtype"] = gradients == DType::bf16  ? "bf16"
                                              : gradients == DType::f16 ? "fp16"
                                                                        : "fp32";
  }

  void optimizer() {
    const Optimizer& optimizer = workload_.optimizer;
    const bool adam = optimizer.is_adam();
    json_["optimizer"]["type"] = adam ? "AdamW" : "SGD";
    if (!adam) json_["optimizer"]["params"]["momentum"] = optimizer.states == 0 ? 0.0 : 0.9;
  }

  void sequence() {
    if (layout_.cp == 1) return;
    json_["data_parallel_size"] = layout_.dp();
    json_["sequence_parallel_size"] = layout_.cp;
    note(
        "attention over sequence_parallel_size ranks by the configuration alone: the model calls "
        "DistributedAttention "
        "or UlyssesSPAttentionHF.register_with_transformers");
    for (const MixerFacts* facts : mixers_beside_attention()) {
      if (facts->is_described(r_.model))
        note(
            str("layers with a ", name(facts->mixer),
                ": they go along the whole sequence, and nothing of DeepSpeed gives a rank what comes before "
                "its rows; the model has to"));
    }
  }

  void left_to_the_program() {
    if (layout_.pp > 1)
      note(str("pp=", layout_.pp, ": stages are those of a PipelineModule, in the program"));
    if (layout_.ep > 1)
      note(str("ep=", layout_.ep, ": the ep_size of deepspeed.moe.layer.MoE, in the program"));
    if (layout_.recompute.kind == Recompute::Kind::full) {
      note(str("recompute=", to_string(layout_.recompute),
               ": the program calls gradient_checkpointing_enable() or deepspeed.checkpointing"));
    }
    if (workload_.attention_dropout > 0)
      note(str("--attention-dropout ", workload_.attention_dropout,
               ": the attention_dropout of the model's config, in the program"));
    if (layout_.mlp_chunks > 1) {
      note(str("the MLP in ", layout_.mlp_chunks, " chunks: TiledMLP of ALST, in the program"));
    }
    if (layout_.host_activations) {
      json_["activation_checkpointing"]["cpu_checkpointing"] = true;
      note(
          "activations in host memory: cpu_checkpointing is that of deepspeed.checkpointing; of "
          "transformers, "
          "ALST's checkpoint offload");
    }
    if (layout_.loss_chunks > 1) {
      note(str("the loss in ", layout_.loss_chunks, " chunks: TiledFusedLogitsLoss of ALST, in the program"));
    }
  }

  const EmitRequest& r_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  ordered_json json_;
  EmittedBody out_;
};

}  // namespace

EmittedBody emit_deepspeed(const EmitRequest& request) { return DeepspeedConfig(request).write(); }

}  // namespace cp::sim
