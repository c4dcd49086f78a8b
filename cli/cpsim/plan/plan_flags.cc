#include "cli/cpsim/plan/plan_flags.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cli/common/flags.h"
#include "cli/cpsim/plan/plan_request.h"
#include "shared/mesh/mesh.h"
#include "shared/transformer/model.h"
#include "shared/transformer/workload.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;
using LayoutFlags = ScenarioFlags<Job>;
using Text = const std::string&;

int degree(const char* flag, Text text) {
  return static_cast<int>(parse_whole(flag, text, 1, Mesh::kMaxRanks));
}

void add_where(FlagSet app, LayoutFlags& flags) {
  const char* group = "Model and cluster";
  add_field(
      app, flags, "--model", "NAME|config.json",
      "The model: a preset (see cpsim list models), a Hugging Face config.json, or the folder that holds one",
      [](Job& job, Text text) { job.set_model(text); })
      .group(group);
  add_field(app, flags, "--cluster", "NAME|FILE.txtpb",
            "The cluster: a preset (see cpsim list clusters), or a file [dgx-h100]",
            [](Job& job, Text text) { job.set_cluster(text); })
      .group(group);
  add_field(app, flags, "--nodes", "N", "How many nodes are used [as many as the cluster's file says]",
            [](Job& job, Text text) {
              // How many a cluster may have follows from the GPUs of a node, which the cluster's own check
              // knows.
              job.set_nodes(static_cast<int>(
                  parse_whole("--nodes", text, 1, std::numeric_limits<std::int32_t>::max())));
            })
      .group(group);
  add_field(app, flags, "--gpus", "N",
            "How many GPUs are used, instead of --nodes: those of whole nodes, or a part of one node",
            [](Job& job, Text text) { job.set_gpus(degree("--gpus", text)); })
      .group(group);
  add_field(app, flags, "--software", "NAME|FILE.txtpb",
            "The software that runs the model: a name (see cpsim list software), or a file [cprun]",
            [](Job& job, Text text) { job.set_software(text); })
      .group(group);
  add_field(app, flags, "--kernels", "NAME",
            "The attention kernel, for example fa2, fa3, cudnn or trtllm [that of the software]",
            [](Job& job, Text text) { job.set_kernels(text); })
      .group(group);
}

void add_step(FlagSet app, LayoutFlags& flags) {
  const char* group = "What is computed";
  add_field(app, flags, "--phase", "PHASE", "What the model does: training, prefill or decode [training]",
            [](Job& job, Text text) {
              switch (value_of("--phase", text, [&] { return parse_phase(text); })) {
                case Phase::training:
                  return job.set_phase(Job::training);
                case Phase::prefill:
                  return job.set_phase(Job::prefill);
                case Phase::decode:
                  return job.set_phase(Job::decode);
              }
            })
      .group(group);
  add_field(app, flags, "--seq-len", "TOKENS", "The length of a sequence: 131072, 128K or 1M",
            [](Job& job, Text text) { job.set_seq_len(parse_tokens("--seq-len", text)); })
      .group(group);
  add_field(app, flags, "--global-batch", "N", "Training: how many sequences a step has",
            [](Job& job, Text text) { job.set_global_batch(parse_whole("--global-batch", text, 1)); })
      .group(group);
  add_field(
      app, flags, "--global-batch-tokens", "TOKENS",
      "Training: how many tokens a step has, instead of --global-batch",
      [](Job& job, Text text) { job.set_global_batch_tokens(parse_tokens("--global-batch-tokens", text)); })
      .group(group);
  add_field(app, flags, "--documents", "ENDS",
            "Training: the documents that are packed into each sequence, 0/4096/8192; none sees another",
            [](Job& job, Text text) { job.set_documents(text); })
      .group(group);
  add_field(app, flags, "--mtp-layers", "N",
            "Training: how many of the config's layers that predict further tokens (MTP) are planned [0]",
            [](Job& job, Text text) {
              job.set_mtp_layers(parse_whole("--mtp-layers", text, 0, kMostPredictionLayers));
            })
      .group(group);
  add_field(app, flags, "--concurrent", "N", "Serving: how many requests run at once [1]",
            [](Job& job, Text text) { job.set_concurrent(parse_whole("--concurrent", text, 1)); })
      .group(group);
  add_field(app, flags, "--cached", "TOKENS",
            "Serving: how many tokens of each request are in the cache already",
            [](Job& job, Text text) { job.set_cached(parse_tokens("--cached", text, 0)); })
      .group(group);
  add_field(app, flags, "--new-tokens", "TOKENS",
            "Decode: how many tokens are written after the cached ones [128]",
            [](Job& job, Text text) { job.set_new_tokens(parse_tokens("--new-tokens", text)); })
      .group(group);
  add_field(app, flags, "--aggregated", "ARRIVALS",
            "Decode: the same GPUs also read the prompts, and requests arrive spread or together",
            [](Job& job, Text text) { job.set_aggregated(text); })
      .group(group);
  add_field(app, flags, "--ttft-max", "MS",
            "Decode: keep only layouts whose time to the first token is no longer: 20000 (ms), or 20s",
            [](Job& job, Text text) { job.set_ttft_max(parse_ms("--ttft-max", text)); })
      .group(group);
}

void add_numbers(FlagSet app, LayoutFlags& flags) {
  const char* group = "How it is computed";
  add_field(app, flags, "--dtype", "DTYPE",
            "The dtype of matmuls and activations [as the config stores it, or bf16]",
            [](Job& job, Text text) { job.set_dtype(sim::parse_proto_dtype("--dtype", text)); })
      .group(group);
  add_field(
      app, flags, "--linear-dtype", "DTYPE",
      "The dtype of the matmuls of linear layers: also fp8 or nvfp4, if the GPU has them [that of --dtype]",
      [](Job& job, Text text) { job.set_linear_dtype(text); })
      .group(group);
  add_field(app, flags, "--attention-dtype", "DTYPE",
            "Prefill: the dtype of the operands of attention: also fp8, if its kernel was measured so [that "
            "of --dtype]",
            [](Job& job, Text text) { job.set_attention_dtype(text); })
      .group(group);
  add_field(app, flags, "--kv-dtype", "DTYPE",
            "Serving: the dtype of the KV cache, also fp8 [that of --dtype]",
            [](Job& job, Text text) {
              job.set_fp8_cache(text == "fp8");
              if (!job.fp8_cache()) job.set_kv_dtype(sim::parse_proto_dtype("--kv-dtype", text));
            })
      .group(group);
  add_field(
      app, flags, "--gradient-dtype", "DTYPE",
      "Training: the dtype in which gradients are added and reduced [f32]",
      [](Job& job, Text text) { job.set_gradient_dtype(sim::parse_proto_dtype("--gradient-dtype", text)); })
      .group(group);
  add_field(app, flags, "--optimizer", "NAME",
            "The optimizer: adamw, adamw_16, sgd or sgd_momentum; with :offload behind it, its state is in "
            "host memory "
            "[adamw]",
            [](Job& job, Text text) { job.set_optimizer(text); })
      .group(group);
  add_field(app, flags, "--expert-imbalance", "FACTOR",
            "How many tokens the busiest expert gets, divided by the mean of all experts [1]",
            [](Job& job, Text text) { job.set_expert_imbalance(parse_real("--expert-imbalance", text)); })
      .group(group);
  add_field(app, flags, "--attention-dropout", "P",
            "Training: the probability of a weight of attention to become 0 [0]",
            [](Job& job, Text text) { job.set_attention_dropout(parse_real("--attention-dropout", text)); })
      .group(group);
}

void add_limits(FlagSet app, LayoutFlags& flags) {
  const char* group = "Search";
  add_field(app, flags, "--micro-batch", "N",
            "Training: how many sequences a replica computes at once [searched]",
            [](Job& job, Text text) { job.set_micro_batch(parse_whole("--micro-batch", text, 1)); })
      .group(group);
  add_field(app, flags, "--recompute", "WHAT",
            "Which activations are computed again: auto, none, selective, full or every:K [auto: searched]",
            [](Job& job, Text text) { job.set_recompute(text); })
      .group(group);
  const auto fix = [&flags](const std::vector<std::string>& texts) {
    flags.changes.emplace_back([texts](Job& job) {
      for (Text text : texts) job.add_fix(text);
    });
  };
  app.add_list(
         "--fix", fix,
         "Keys of the layout that the search must not vary, for example tp=8,strategy=ring; may come again")
      .type_name("KEY=VALUE,...")
      .one_value_each_time()
      .group(group);
  add_field(
      app, flags, "--max-memory", "GIB",
      "How much memory of a GPU may be used: 72 (GiB), 72GiB or 77GB [what the cluster's file calls usable]",
      [](Job& job, Text text) { job.set_max_memory(parse_gib("--max-memory", text)); })
      .group(group);
  add_field(
      app, flags, "--baseline", "LAYOUT",
      "Compare the answer with this layout, for example tp=8,cp=2; keys that it does not give are searched",
      [](Job& job, Text text) { job.set_baseline(text); })
      .group(group);
  add_field(app, flags, "--top", "N", "How many layouts are shown [5]", [](Job& job, Text text) {
    job.set_top(static_cast<int>(parse_whole("--top", text, 1, 1000)));
  }).group(group);
}

}  // namespace

void add_plan_flags(FlagSet app, LayoutFlags& flags) {
  add_where(app, flags);
  add_step(app, flags);
  add_numbers(app, flags);
  add_limits(app, flags);
}

}  // namespace cp::cli
