// Writes a command line of vllm serve.
#include <algorithm>
#include <functional>
#include <string_view>

#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "sim/planner/emit/emitters.h"
#include "sim/planner/models/read_model.h"

namespace cp::sim {
namespace {

// What vllm serve takes: a repository, or the folder of a config.json.
std::string served_model(const EmitRequest& request) {
  const std::string& given = request.context.model;
  constexpr std::string_view kConfig = "config.json";
  if (given == kConfig) return ".";
  if (given.ends_with(str("/", kConfig))) return given.substr(0, given.size() - kConfig.size() - 1);
  const std::vector<std::string> presets = model_names();
  const bool preset = std::find(presets.begin(), presets.end(), request.model.name) != presets.end();
  return preset ? find_model(request.model.name).repository : given;
}

class VllmCommand {
 public:
  explicit VllmCommand(const EmitRequest& request)
      : r_(request), model_(request.model), workload_(request.workload), layout_(request.layout) {}

  EmittedBody write() {
    const std::vector<std::int64_t> layers = stage_layers(model_, layout_);
    if (std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) != layers.end()) {
      text_ += str("VLLM_PP_LAYER_PARTITION=", join(layers, ","), " ");
    }
    text_ += str("vllm serve ", served_model(r_));
    const int tensor_parallel = workload_.phase == Phase::decode ? layout_.tp * layout_.cp : layout_.tp;
    flag("tensor-parallel-size", tensor_parallel);
    flag("pipeline-parallel-size", layout_.pp);
    flag("data-parallel-size", layout_.dp());
    if (layout_.cp > 1) context_parallel(tensor_parallel);
    if (layout_.ep > 1) {
      flag("enable-expert-parallel");
    }
    flag("max-model-len", workload_.seq_len);
    flag("max-num-seqs", layout_.micro_batch);
    if (workload_.phase == Phase::prefill) {
      flag("max-num-batched-tokens", (workload_.seq_len - workload_.cached) * layout_.micro_batch);
    }
    if (workload_.phase == Phase::prefill && layout_.tp > 1 && layout_.sequence_parallel) {
      flag("compilation-config", R"('{"pass_config": {"enable_sequence_parallelism": true}}')");
    }
    dtypes();
    nodes(tensor_parallel);
    out_.text = str(text_, "\n");
    return std::move(out_);
  }

 private:
  template <class... Values>
  void flag(std::string_view name, const Values&... values) {
    text_ += str(" \\\n  --", name);
    ((text_ += str(" ", values)), ...);
  }

  // In decode the ranks that share a cache are tensor-parallel ones. As many ranks share it as would keep
  // copies of the same heads.
  void context_parallel(int tensor_parallel) {
    if (workload_.phase == Phase::prefill) {
      flag("prefill-context-parallel-size", layout_.cp);
      for (const MixerFacts* facts : mixers_beside_attention()) {
        if (facts->is_described(model_))
          out_.notes.push_back(
              str("layers with a ", name(facts->mixer),
                  " over prefill-context-parallel ranks: see whether the version at hand has "
                  "them; each rank needs what comes before its rows"));
      }
      return out_.notes.push_back(
          str("strategy ", to_string(layout_.strategy, layout_.cp),
              ": how prefill-context-parallel ranks share keys is the attention backend's choice"));
    }
    const std::int64_t cached_heads = model_.latent ? 1 : model_.kv_heads;  // a latent row is of all heads
    const int copies = static_cast<int>(std::max<std::int64_t>(1, tensor_parallel / cached_heads));
    int size = std::min(copies, layout_.cp);
    while (tensor_parallel % size != 0) --size;
    flag("decode-context-parallel-size", size);
  }

  void dtypes() {
    const auto word = [](DType dtype) {
      return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
    };
    flag("dtype", word(workload_.dtype));
    if (model_.recurrence) flag("mamba-ssm-cache-dtype", word(DType::f32));  // as kv_cache.h has it
    if (r_.context.fp8_products) flag("quantization", r_.context.nvfp4_products ? "modelopt_fp4" : "fp8");
    if (r_.context.fp8_cache) return flag("kv-cache-dtype", "fp8");
    if (workload_.kv_dtype == workload_.dtype) return flag("kv-cache-dtype", "auto");
    if (workload_.kv_dtype == DType::bf16) return flag("kv-cache-dtype", "bfloat16");
    flag("kv-cache-dtype", "auto");
  }

  void nodes(int tensor_parallel) {
    if (r_.context.nodes == 1) return;
    if (layout_.dp() > 1) flag("data-parallel-backend", "ray");
    if (tensor_parallel * layout_.pp > r_.context.gpus_per_node) flag("distributed-executor-backend", "ray");
  }

  const EmitRequest& r_;
  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  std::string text_;
  EmittedBody out_;
};

}  // namespace

EmittedBody emit_vllm(const EmitRequest& request) { return VllmCommand(request).write(); }

}  // namespace cp::sim
