#include "cli/cpsim/plan/plan_flags.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cli/common/flags.h"
#include "cli/cpsim/plan/plan_request.h"
#include "shared/mesh/mesh.h"
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
  add_field(app, flags, "--model", "NAME|config.json", "A preset, a Hugging Face config.json, or its folder",
            [](Job& job, Text text) { job.set_model(text); })
      .group(group);
  add_field(app, flags, "--cluster", "NAME|FILE.txtpb", "A preset or a file [dgx-h100]",
            [](Job& job, Text text) { job.set_cluster(text); })
      .group(group);
  add_field(app, flags, "--nodes", "N", "[as many as the cluster's file says]", [](Job& job, Text text) {
    // How many a cluster may have follows from the GPUs of a node, which the cluster's own check knows.
    job.set_nodes(
        static_cast<int>(parse_whole("--nodes", text, 1, std::numeric_limits<std::int32_t>::max())));
  }).group(group);
  add_field(app, flags, "--gpus", "N", "Instead of --nodes: whole nodes, or a part of one",
            [](Job& job, Text text) { job.set_gpus(degree("--gpus", text)); })
      .group(group);
  add_field(app, flags, "--software", "NAME|FILE.txtpb", "Whose implementation [cprun]",
            [](Job& job, Text text) { job.set_software(text); })
      .group(group);
  add_field(app, flags, "--kernels", "NAME",
            "Attention kernel, such as fa2, fa3, cudnn or trtllm [the software's]",
            [](Job& job, Text text) { job.set_kernels(text); })
      .group(group);
}

void add_step(FlagSet app, LayoutFlags& flags) {
  const char* group = "What is computed";
  add_field(app, flags, "--phase", "PHASE", "training, prefill or decode [training]",
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
  add_field(app, flags, "--seq-len", "TOKENS", "131072, 128K, 1M", [](Job& job, Text text) {
    job.set_seq_len(parse_tokens("--seq-len", text));
  }).group(group);
  add_field(app, flags, "--global-batch", "N", "Training: sequences in a step", [](Job& job, Text text) {
    job.set_global_batch(parse_whole("--global-batch", text, 1));
  }).group(group);
  add_field(app, flags, "--global-batch-tokens", "TOKENS", "The same in tokens", [](Job& job, Text text) {
    job.set_global_batch_tokens(parse_tokens("--global-batch-tokens", text));
  }).group(group);
  add_field(app, flags, "--concurrent", "N", "Serving: requests at once [1]", [](Job& job, Text text) {
    job.set_concurrent(parse_whole("--concurrent", text, 1));
  }).group(group);
  add_field(app, flags, "--cached", "TOKENS", "Serving: what the cache has of each request",
            [](Job& job, Text text) { job.set_cached(parse_tokens("--cached", text, 0)); })
      .group(group);
  add_field(app, flags, "--new-tokens", "TOKENS", "Decode: what is written after that [128]",
            [](Job& job, Text text) { job.set_new_tokens(parse_tokens("--new-tokens", text)); })
      .group(group);
  add_field(app, flags, "--aggregated", "ARRIVALS",
            "Decode: prompts are read on the same GPUs, of requests that come spread or together",
            [](Job& job, Text text) { job.set_aggregated(text); })
      .group(group);
  add_field(app, flags, "--ttft-max", "MS",
            "Decode: only layouts whose prompt takes no longer: 20000, or 20s",
            [](Job& job, Text text) { job.set_ttft_max(parse_ms("--ttft-max", text)); })
      .group(group);
}

void add_numbers(FlagSet app, LayoutFlags& flags) {
  const char* group = "How it is computed";
  add_field(app, flags, "--dtype", "DTYPE", "Of products and activations [as the config stores it, or bf16]",
            [](Job& job, Text text) { job.set_dtype(sim::parse_proto_dtype("--dtype", text)); })
      .group(group);
  add_field(app, flags, "--linear-dtype", "DTYPE",
            "Of linear layers' products: fp8 or nvfp4, where the GPU has it [that of --dtype]",
            [](Job& job, Text text) { job.set_linear_dtype(text); })
      .group(group);
  add_field(app, flags, "--attention-dtype", "DTYPE",
            "Prefill: of attention's operands: fp8, where its kernel was measured so [that of --dtype]",
            [](Job& job, Text text) { job.set_attention_dtype(text); })
      .group(group);
  add_field(app, flags, "--kv-dtype", "DTYPE", "Serving: of the cache, also fp8 [that of --dtype]",
            [](Job& job, Text text) {
              job.set_fp8_cache(text == "fp8");
              if (!job.fp8_cache()) job.set_kv_dtype(sim::parse_proto_dtype("--kv-dtype", text));
            })
      .group(group);
  add_field(
      app, flags, "--gradient-dtype", "DTYPE", "Training: of added and reduced gradients [f32]",
      [](Job& job, Text text) { job.set_gradient_dtype(sim::parse_proto_dtype("--gradient-dtype", text)); })
      .group(group);
  add_field(app, flags, "--optimizer", "NAME",
            "adamw, adamw_16, sgd or sgd_momentum; with :offload in host memory [adamw]",
            [](Job& job, Text text) { job.set_optimizer(text); })
      .group(group);
  add_field(app, flags, "--expert-imbalance", "FACTOR", "Tokens of the busiest expert over their mean [1]",
            [](Job& job, Text text) { job.set_expert_imbalance(parse_real("--expert-imbalance", text)); })
      .group(group);
}

void add_limits(FlagSet app, LayoutFlags& flags) {
  const char* group = "Search";
  add_field(app, flags, "--micro-batch", "N", "Training: sequences of a replica at once [searched]",
            [](Job& job, Text text) { job.set_micro_batch(parse_whole("--micro-batch", text, 1)); })
      .group(group);
  add_field(app, flags, "--recompute", "WHAT", "auto, none, selective, full or every:K [auto: searched]",
            [](Job& job, Text text) { job.set_recompute(text); })
      .group(group);
  const auto fix = [&flags](const std::vector<std::string>& texts) {
    flags.changes.emplace_back([texts](Job& job) {
      for (Text text : texts) job.add_fix(text);
    });
  };
  app.add_list("--fix", fix, "What the search must not vary, such as tp=8,strategy=ring; may come again")
      .type_name("KEY=VALUE,...")
      .one_value_each_time()
      .group(group);
  add_field(app, flags, "--max-memory", "GIB",
            "Of a GPU: 72, 72GiB or 77GB [what the cluster's file calls usable]",
            [](Job& job, Text text) { job.set_max_memory(parse_gib("--max-memory", text)); })
      .group(group);
  add_field(app, flags, "--baseline", "LAYOUT",
            "Compare with this one, such as tp=8,cp=2; keys that it does not give are searched",
            [](Job& job, Text text) { job.set_baseline(text); })
      .group(group);
  add_field(app, flags, "--top", "N", "Layouts to show [5]", [](Job& job, Text text) {
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
