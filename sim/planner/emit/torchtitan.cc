// Writes a configuration of torchtitan 0.2 (2025), as TOML.
#include <algorithm>
#include <map>
#include <string_view>

#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/planner/emit/emitters.h"

namespace cp::sim {
namespace {

class TorchtitanConfig {
 public:
  explicit TorchtitanConfig(const EmitRequest& request)
      : r_(request), workload_(request.workload), layout_(request.layout) {}

  EmittedBody write() {
    model();
    training();
    parallelism();
    activation_checkpoint();
    optimizer();
    return std::move(out_);
  }

 private:
  void section(std::string_view name) { out_.text += str("\n[", name, "]\n"); }
  template <class T>
  void set(std::string_view key, const T& value) {
    out_.text += str(key, " = ", value, "\n");
  }
  void set_text(std::string_view key, std::string_view value) { set(key, str('"', value, '"')); }
  void note(std::string what) { out_.notes.push_back(std::move(what)); }

  void model() {
    static const std::map<std::string_view, std::pair<std::string_view, std::string_view>> kFlavors = {
        {"llama-3.1-8b", {"llama3", "8B"}},
        {"llama-3.1-70b", {"llama3", "70B"}},
        {"llama-3.1-405b", {"llama3", "405B"}},
        {"qwen3-32b", {"qwen3", "32B"}}};
    section("model");
    const auto known = kFlavors.find(r_.model.name);
    set_text("name", known == kFlavors.end() ? "llama3" : known->second.first);
    set_text("flavor", known == kFlavors.end() ? r_.model.name : known->second.second);
    if (r_.context.fp8_products) {
      set("converters", "[\"quantize.linear.float8\"]");
      section("quantize.linear.float8");
      set("filter_fqns", "[\"output\"]");
    }
    if (known != kFlavors.end()) return;
    note(str("the sizes of ", r_.model.name, ": add a flavor of this name to a model's registry"));
    if (r_.model.qkv_bias) {
      note(str("the biases of q, k and v that ", r_.model.name,
               " has: the attention of torchtitan's llama3 has none; take a model that has them"));
    }
    if (r_.model.latent) note("latent attention: torchtitan's llama3 has none; take its deepseek_v3");
    for (const MixerFacts* facts : mixers_beside_attention()) {
      if (facts->is_described(r_.model))
        note(str("layers with a ", name(facts->mixer), ": torchtitan has no model with them"));
    }
    if (r_.model.experts) note("experts: torchtitan's llama3 has none; take a model that has them");
  }

  void training() {
    section("training");
    // With pipeline stages the local batch is all that a rank computes in a step, cut into micro-batches.
    const std::int64_t steps = layout_.pp > 1 ? accumulation(workload_, layout_) : 1;
    set("local_batch_size", layout_.micro_batch * steps);
    set("global_batch_size", workload_.global_batch);
    set("seq_len", workload_.seq_len);
    set_text("mixed_precision_param", workload_.dtype == DType::f32 ? "float32" : "bfloat16");
    set_text("mixed_precision_reduce", "float32");
    if (!workload_.optimizer.offload) return;
    set("enable_cpu_offload", "true");
    note("states alone in host memory: enable_cpu_offload moves parameters and gradients, too");
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
  }

  std::string_view rotate_method() {
    const Strategy& strategy = layout_.strategy;
    const bool at_once = strategy.rotation == Strategy::Rotation::all_gather;
    return word_of(Framework::torchtitan, at_once ? Core::all_gather : strategy.core);
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
        return set_text("selective_ac_option", "op");
      case Recompute::Kind::every:
        set_text("mode", "selective");
        return set_text("selective_ac_option", str(layout_.recompute.every));
    }
  }

  void optimizer() {
    section("optimizer");
    set_text("name", "AdamW");
  }

  const EmitRequest& r_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  EmittedBody out_;
};

}  // namespace

EmittedBody emit_torchtitan(const EmitRequest& request) { return TorchtitanConfig(request).write(); }

}  // namespace cp::sim
