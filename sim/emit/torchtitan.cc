// A configuration of torchtitan (2025), as TOML.
#include <algorithm>
#include <map>
#include <string_view>

#include "shared/base/text.h"
#include "sim/emit/emitters.h"

namespace cp::sim {
namespace {

class TorchtitanConfig {
 public:
  explicit TorchtitanConfig(const EmitRequest& request)
      : r_(request), workload_(request.workload), layout_(request.layout) {}

  Emitted write() {
    out_.text = str("# torchtitan: ", headline(r_), "\n");
    model();
    training();
    parallelism();
    activation_checkpoint();
    optimizer();
    if (layout_.loss_chunks > 1) {
      cannot(str("the loss in ", layout_.loss_chunks, " chunks: logits of all rows exist at once"));
    }
    return std::move(out_);
  }

 private:
  void section(std::string_view name) { out_.text += str("\n[", name, "]\n"); }
  template <class T>
  void set(std::string_view key, const T& value) {
    out_.text += str(key, " = ", value, "\n");
  }
  void set_text(std::string_view key, std::string_view value) { set(key, str('"', value, '"')); }
  void cannot(std::string what) { out_.cannot.push_back(std::move(what)); }

  void model() {
    static const std::map<std::string_view, std::pair<std::string_view, std::string_view>> kFlavors = {
        {"llama-3.1-8b", {"llama3", "8B"}},
        {"llama-3.1-70b", {"llama3", "70B"}},
        {"llama-3.1-405b", {"llama3", "405B"}},
        {"qwen3-32b", {"qwen3", "32B"}}};
    section("model");
    const auto known = kFlavors.find(r_.model.name);
    if (known != kFlavors.end()) {
      set_text("name", known->second.first);
      set_text("flavor", known->second.second);
      return;
    }
    set_text("name", "llama3");
    set_text("flavor", r_.model.name);
    cannot(str("the sizes of ", r_.model.name, ": add a flavor of this name to a model's registry"));
  }

  void training() {
    section("training");
    // With pipeline stages the local batch is all that a rank computes in a step, cut into micro-batches.
    const std::int64_t steps = layout_.pp > 1 ? accumulation(workload_, layout_) : 1;
    set("local_batch_size", layout_.micro_batch * steps);
    set("global_batch_size", workload_.global_batch);
    set("seq_len", workload_.seq_len);
    if (workload_.dtype == DType::f16) cannot("f16: mixed_precision_param is bfloat16 or float32");
    set_text("mixed_precision_param", workload_.dtype == DType::f32 ? "float32" : "bfloat16");
    set_text("mixed_precision_reduce", "float32");
    if (workload_.gradient_dtype != DType::f32) {
      cannot(str("gradients in ", name(workload_.gradient_dtype), ": they are reduced in f32"));
    }
    if (!workload_.optimizer.offload) return;
    set("enable_cpu_offload", "true");
    cannot("states alone in host memory: enable_cpu_offload moves parameters and gradients, too");
  }

  void parallelism() {
    section("parallelism");
    set("data_parallel_replicate_degree", layout_.dp_replicate);
    set("data_parallel_shard_degree", layout_.dp_shard);
    set("context_parallel_degree", layout_.cp);
    if (layout_.cp > 1) set_text("context_parallel_rotate_method", rotate_method());
    set("tensor_parallel_degree", layout_.tp);
    set("expert_parallel_degree", layout_.ep);
    pipeline();
    if (layout_.sharding == ShardingGroup::dp_shard) {
      cannot(str("sharding=dp_shard: parameters are sharded over context-parallel ranks, too, ",
                 layout_.dp_shard * layout_.cp, " ranks instead of ", layout_.dp_shard));
    }
    if (layout_.order != AxisOrder::tp_cp_dp_pp) {
      cannot(str("order ", to_string(layout_.order), ": it is always tp-cp-dp-pp"));
    }
  }

  std::string_view rotate_method() {
    const Strategy& strategy = layout_.strategy;
    if (strategy.ulysses_degree > 1) {
      cannot(str("ulysses_degree=", strategy.ulysses_degree, ": keys and values rotate over all ", layout_.cp,
                 " ranks instead"));
    }
    if (r_.ring_size() > 1 && strategy.balance.kind != Balance::Kind::head_tail) {
      cannot(str("balance ", to_string(strategy.balance), ": causal attention is always split head_tail"));
    }
    if (strategy.core == Core::all_gather) return "allgather";
    if (strategy.core == Core::need_only) {
      cannot("need_only: allgather brings every rank all keys and values instead");
      return "allgather";
    }
    if (strategy.core == Core::pass_q) cannot("pass_q: alltoall passes keys and values instead of queries");
    if (strategy.inner_ring > 1)
      cannot(str("double rings of ", strategy.inner_ring, ": alltoall is one ring"));
    return strategy.rotation == Strategy::Rotation::all_gather ? "allgather" : "alltoall";
  }

  void pipeline() {
    set("pipeline_parallel_degree", layout_.pp);
    if (layout_.pp == 1) return;
    set_text("pipeline_parallel_schedule", layout_.virtual_stages > 1 ? "Interleaved1F1B" : "1F1B");
    set("pipeline_parallel_microbatch_size", layout_.micro_batch);
    const std::vector<std::int64_t> layers = stage_layers(r_.model, layout_);
    const std::int64_t most = *std::max_element(layers.begin(), layers.end());
    set("pipeline_parallel_layers_per_stage", most);
    set("pipeline_parallel_first_stage_less_layers", most - layers.front());
    set("pipeline_parallel_last_stage_less_layers", most - layers.back());
    if (std::any_of(layers.begin() + 1, layers.end() - 1, [&](std::int64_t n) { return n != most; })) {
      cannot(str("stages of ", join(layers, "/"), " layers: only the first and the last may have fewer"));
    }
  }

  void activation_checkpoint() {
    section("activation_checkpoint");
    switch (layout_.recompute.kind) {
      case Recompute::Kind::none:
        return set_text("mode", "none");
      case Recompute::Kind::full:
        return set_text("mode", "full");
      case Recompute::Kind::selective:
        set_text("mode", "selective");
        set_text("selective_ac_option", "op");
        return cannot("selective without products: the option op computes every second product again");
      case Recompute::Kind::every:
        set_text("mode", "selective");
        return set_text("selective_ac_option", str(layout_.recompute.every));
    }
  }

  void optimizer() {
    section("optimizer");
    const Optimizer& optimizer = workload_.optimizer;
    set_text("name", "AdamW");
    if (!optimizer.name.starts_with("adamw"))
      cannot(str(optimizer.name, ": the optimizers are Adam and AdamW"));
    if (optimizer.state_dtype != DType::f32) {
      cannot(str("states in ", name(optimizer.state_dtype), ": they are in f32"));
    }
  }

  const EmitRequest& r_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  Emitted out_;
};

}  // namespace

Emitted emit_torchtitan(const EmitRequest& request) { return TorchtitanConfig(request).write(); }

}  // namespace cp::sim
