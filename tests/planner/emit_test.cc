// What is handed over: golden texts, and for each choice of a layout that a framework has no word for, the
// sentence that says so.
#include "sim/planner/emit/emit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/context_parallel/problem.h"
#include "sim/planner/models/read_model.h"
#include "sim/proof/run/attention_run.h"
#include "sim/scenario/train_job.h"
#include "sim/scenario/training_threads.h"
#include "tests/support/golden.h"
#include "tests/support/messages.h"
#include "traces/scenario.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

using ::cp::testing::compare_with_golden;
using ::cp::testing::message_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Workload training(std::int64_t seq_len = 131072, std::int64_t batch = 16) {
  Workload workload;
  workload.seq_len = seq_len, workload.global_batch = batch;
  return workload;
}
Workload serving(Phase phase, std::int64_t seq_len, std::int64_t cached, std::int64_t batch = 8) {
  Workload workload = training(seq_len, batch);
  workload.phase = phase, workload.cached = cached;
  if (phase == Phase::decode) workload.new_tokens = seq_len - cached;
  return workload;
}

struct EmitCase {
  std::string model = "llama-3.1-8b";
  std::string layout;
  Workload workload = training();
};

// Serving, all requests of a replica are one micro-batch.
ParallelLayout layout_of(const EmitCase& c) {
  ParallelLayout layout = parse_parallel_layout(c.layout);
  if (c.workload.phase != Phase::training) layout.micro_batch = c.workload.global_batch / layout.dp();
  return layout;
}

Emitted emitted(Framework framework, const EmitCase& c) {
  const ParallelLayout layout = layout_of(c);
  const int nodes = (layout.world() + 7) / 8;
  return emit(framework, find_model(c.model).model, c.workload, layout,
              {c.model, nodes, layout.world() / nodes});
}
std::string text_of(Framework framework, const EmitCase& c) { return emitted(framework, c).text; }
std::vector<std::string> cannot_of(Framework framework, const EmitCase& c) {
  return emitted(framework, c).cannot;
}

// ---- golden texts ----

struct Golden {
  const char* file;
  Framework framework;
  EmitCase request;
};

std::vector<Golden> goldens() {
  const EmitCase ring = {"llama-3.1-8b",
                         "tp=2,cp=4,dp_shard=2,strategy=ring,balance=head_tail,recompute=full"};
  const EmitCase stages = {
      "mixtral-8x7b",
      "tp=2,cp=2,dp_shard=2,dp_replicate=2,pp=3,ep=4,strategy=all_gather,balance=head_tail,recompute=every:2,"
      "order=tp-cp-pp-dp",
      training(32768, 24)};
  const EmitCase ulysses = {"qwen2.5-7b", "cp=4,dp_shard=2,strategy=ulysses,recompute=selective",
                            training(65536, 8)};
  return {
      {"megatron_ring", Framework::megatron, ring},
      {"megatron_stages", Framework::megatron, stages},
      {"megatron_experts",
       Framework::megatron,
       {"llama-4-maverick", "tp=8,dp_shard=8,ep=8", training(8192, 64)}},
      {"torchtitan_ring", Framework::torchtitan, ring},
      {"torchtitan_stages",
       Framework::torchtitan,
       {"llama-3.1-70b", "tp=8,dp_shard=2,pp=4,virtual_stages=2,recompute=every:2,micro_batch=1",
        training(8192, 64)}},
      {"deepspeed_ulysses", Framework::deepspeed, ulysses},
      {"vllm_prefill",
       Framework::vllm,
       {"llama-3.1-70b", "tp=4,cp=2,strategy=ring,balance=head_tail", serving(Phase::prefill, 131072, 0, 1)}},
      {"vllm_decode",
       Framework::vllm,
       {"llama-3.1-70b", "tp=8,cp=2,dp_replicate=2,strategy=pass_q", serving(Phase::decode, 131072, 130048)}},
      {"cprun_stages", Framework::cprun, stages},
      {"attention_ring", Framework::attention, ring},
      {"attention_ulysses", Framework::attention, ulysses}};
}

TEST(EmitGolden, TextsAreThese) {
  for (const Golden& golden : goldens()) {
    EXPECT_EQ(
        compare_with_golden(str("emit/", golden.file, ".txt"), text_of(golden.framework, golden.request)), "")
        << golden.file;
  }
}

// Norms that subtract the mean, and what else Megatron has no flags for.
TEST(Emit, MegatronsNormsAreThoseOfTheModel) {
  const Emitted cohere = emitted(Framework::megatron, {"command-r7b", "tp=8"}),
                nemotron = emitted(Framework::megatron, {"nemotron-4-340b", "tp=8,pp=8"});
  EXPECT_THAT(cohere.text, AllOf(HasSubstr("--normalization LayerNorm"), Not(HasSubstr("layernorm-1p"))));
  EXPECT_THAT(nemotron.text,
              AllOf(HasSubstr("--normalization LayerNorm"), HasSubstr("--apply-layernorm-1p")));
  EXPECT_THAT(cohere.text, HasSubstr("attention and MLP of a layer take the same rows"));
  EXPECT_THAT(cohere.text, HasSubstr("logits are multiplied with 0.25"));
  EXPECT_THAT(text_of(Framework::megatron, {"llama-3.1-8b", "tp=8"}), HasSubstr("--normalization RMSNorm"));
}

// ---- what cannot be expressed ----

struct Lacking {
  Framework framework;
  EmitCase request;
  const char* sentence;
};

TEST(EmitCannot, SaysEachChoiceThatIsLost) {
  const auto layout = [](const char* text) { return EmitCase{"llama-3.1-8b", text}; };
  const auto changed = [](const char* text, auto change) {
    EmitCase request = {"llama-3.1-8b", text};
    change(request.workload);
    return request;
  };
  using enum Framework;
  const std::vector<Lacking> all = {
      {megatron, layout("cp=4,strategy=ring,balance=contiguous"),
       "balance contiguous: batches are always split head_tail"},
      {megatron, layout("cp=4,strategy=need_only"), "need_only: allgather brings"},
      {megatron, layout("cp=4,strategy=pass_q,balance=head_tail"), "pass_q: p2p passes keys"},
      {megatron, layout("cp=4,strategy=double_ring,balance=head_tail"), "double rings of 2"},
      {megatron, layout("cp=4,strategy=ring,balance=head_tail,rotation=all_gather"), "rotation=all_gather"},
      {megatron, layout("cp=4,strategy=ulysses_ring,axis_order=ring_inner,balance=head_tail"),
       "rings of neighbours"},
      {megatron, layout("cp=4,strategy=ulysses_all_gather,balance=head_tail"), "a core other than the ring"},
      {megatron, layout("tp=4,cp=4,strategy=ulysses"), "an all-to-all of 4 ranks over the 2 query groups"},
      {megatron, layout("cp=2,dp_shard=2,sharding=dp_shard,strategy=ring,balance=head_tail"),
       "sharding=dp_shard: parameters are sharded over context-parallel ranks, too, 4 ranks instead of 2"},
      {megatron, layout("tp=16"), "num-query-groups=8 shared by tensor-model-parallel-size=16"},
      {megatron, layout("tp=2,cp=2,strategy=ring,balance=head_tail,order=cp-tp-dp-pp"), "order cp-tp-dp-pp"},
      {megatron, layout("cp=2,dp_shard=2,strategy=ring,balance=head_tail,order=tp-dp-cp-pp"),
       "order tp-dp-cp-pp"},
      {megatron, layout("tp=2,recompute=selective"), "the activation function of a dense MLP"},
      {megatron, layout("tp=2,recompute=every:4"), "every 4th layer again"},
      {megatron, layout("tp=2,loss_chunks=8"), "the loss in 8 chunks"},
      {megatron, changed("tp=2", [](Workload& w) { w.gradient_dtype = DType::f16; }), "gradients in f16"},
      {torchtitan, layout("cp=4,strategy=ulysses"), "ulysses_degree=4"},
      {torchtitan, layout("cp=4,strategy=ring,balance=striped:16"), "balance striped:16"},
      {torchtitan, layout("cp=4,strategy=need_only,balance=head_tail"), "need_only"},
      {torchtitan, layout("cp=4,strategy=pass_q,balance=head_tail"), "pass_q"},
      {torchtitan, layout("cp=4,strategy=double_ring,balance=head_tail"), "double rings"},
      {torchtitan, layout("tp=2,pp=2,order=tp-cp-pp-dp"), "order tp-cp-pp-dp"},
      {torchtitan, layout("cp=2,dp_shard=2,sharding=dp_shard,strategy=ring,balance=head_tail"),
       "sharding=dp_shard"},
      {torchtitan, layout("tp=2,loss_chunks=8"), "the loss in 8 chunks"},
      {torchtitan, layout("tp=2,recompute=selective"), "selective without products"},
      {torchtitan,
       {"llama-3.1-8b", "pp=3,virtual_stages=3,tp=2", training(8192, 18)},
       "only the first and the last may have fewer"},
      {torchtitan, {"qwen2.5-7b", "tp=2"}, "the sizes of qwen2.5-7b"},
      {torchtitan, changed("tp=2", [](Workload& w) { w.dtype = DType::f16; }), "f16: mixed_precision_param"},
      {torchtitan, changed("tp=2", [](Workload& w) { w.gradient_dtype = DType::bf16; }), "gradients in bf16"},
      {torchtitan, changed("tp=2", [](Workload& w) { w.optimizer = parse_optimizer("adamw:offload"); }),
       "states alone"},
      {torchtitan, changed("tp=2", [](Workload& w) { w.optimizer = parse_optimizer("adamw_16"); }),
       "states in bf16"},
      {torchtitan, changed("tp=2", [](Workload& w) { w.optimizer = parse_optimizer("sgd"); }),
       "sgd: the optimizers"},
      {deepspeed, layout("cp=4,strategy=ring"), "strategy ring contiguous: it is Ulysses"},
      {deepspeed, layout("cp=4,strategy=ulysses"), "DistributedAttention"},
      {deepspeed, layout("dp_shard=4,dp_replicate=2"), "MiCS_Init"},
      {deepspeed,
       changed("dp_replicate=2", [](Workload& w) { w.optimizer = parse_optimizer("adamw:offload"); }),
       "splits them among replicas"},
      {deepspeed, layout("cp=2,dp_shard=2,sharding=dp_shard,strategy=ulysses"), "sharding=dp_shard"},
      {deepspeed, layout("tp=2,pp=2,virtual_stages=2"), "pp=2: stages are those of a PipelineModule"},
      {deepspeed, layout("tp=2,pp=2,virtual_stages=2"), "virtual_stages=2"},
      {deepspeed, {"mixtral-8x7b", "dp_shard=4,ep=4"}, "ep=4"},
      {deepspeed, layout("tp=2,recompute=full"), "gradient_checkpointing_enable"},
      {deepspeed, layout("tp=2,loss_chunks=4"), "TiledFusedLogitsLoss"},
      {deepspeed, layout("tp=2,cp=2,strategy=ulysses,order=cp-tp-dp-pp"), "order cp-tp-dp-pp"},
      {deepspeed, changed("tp=2", [](Workload& w) { w.optimizer = parse_optimizer("adamw_16"); }),
       "states in bf16"},
      {vllm,
       {"llama-3.1-8b", "tp=4,cp=2,strategy=pass_q", serving(Phase::decode, 8192, 8000)},
       "cp=2 beside tp=4: weights are split over all 8 ranks, and the cache by kv heads"},
      {megatron, {"llama-3.1-8b", "cp=4,strategy=ulysses_ring,balance=contiguous"}, "balance contiguous"},
      {torchtitan, layout("tp=16"), "n_kv_heads=8 shared by tensor_parallel_degree=16"},
      {torchtitan, {"qwen2.5-7b", "tp=2"}, "the biases of q, k and v"},
      {torchtitan,
       {"mixtral-8x7b", "cp=4,ep=2,dp_shard=2,strategy=ring,balance=head_tail"},
       "ep=2 of cp=4: experts are split over all cp ranks at least"},
      {deepspeed, layout("tp=2,dp_shard=4"), "tp=2 beside sharded parameters"},
      {deepspeed, layout("tp=2"), "rows split over tp ranks: AutoTP all-reduces them"},
      {deepspeed, layout("dp_shard=2,mlp_chunks=4"), "TiledMLP"},
      {deepspeed, layout("dp_shard=2,recompute=full,activations=host"), "cpu_checkpointing"},
      {deepspeed, layout("dp_shard=2,activations=host"), "checkpoints alone go to host memory"},
      {deepspeed, layout("dp_shard=2,dp_replicate=2,zero=1"),
       "stage 1 shares over all 4 data-parallel ranks"},
      {megatron, layout("dp_shard=2,mlp_chunks=4"), "the MLP in 4 chunks"},
      {megatron, layout("dp_shard=2,activations=host,recompute=full"), "not with recomputation"},
      {megatron, layout("dp_shard=2,activations=host"), "of all 32 layers in host memory: it is 31"},
      {megatron,
       {"mixtral-8x7b", "tp=2,dp_shard=4,ep=4,sequence_parallel=no"},
       "experts beside tensor parallelism need --sequence-parallel"},
      {torchtitan, layout("dp_shard=2,zero=1"), "zero=1: fully_shard gathers parameters"},
      {torchtitan, layout("dp_shard=2,reshard=no"), "reshard=no: parameters are given up"},
      {torchtitan, layout("dp_shard=2,prefetch=2"), "prefetch=2: one layer ahead is gathered"},
      {torchtitan, layout("dp_shard=2,bucket=2"), "bucket=2: layers are gathered one by one"},
      {torchtitan, layout("dp_shard=2,threshold=9"), "threshold=9: small tensors are sharded"},
      {torchtitan, layout("dp_shard=2,sync=step"), "sync=step: gradients are reduced behind"},
      {torchtitan, layout("tp=2,sequence_parallel=no"), "whole rows on all tp ranks"},
      {torchtitan, layout("tp=2,mlp_chunks=4"), "the MLP in 4 chunks"},
      {torchtitan, layout("tp=2,activations=host"), "they stay on the GPU"},
      {vllm,
       {"llama-3.1-8b", "tp=8", serving(Phase::decode, 8192, 8000)},
       "rows split over tp ranks: with a token of each request they are all-reduced"},
      {deepspeed, layout("dp_shard=8,recompute=every:2"), "computes every layer again"},
      {vllm,
       {"llama-3.1-8b", "tp=4,cp=2,strategy=ring", serving(Phase::prefill, 8192, 0)},
       "the attention backend's choice"},
      {vllm, {"mixtral-8x7b", "tp=2,cp=2,ep=2,strategy=pass_q", serving(Phase::decode, 8192, 8000)}, "ep=2"},
      {attention, layout("tp=2,pp=2,dp_shard=2"), "pp=2: stages are planned, not run"},
      {attention, layout("tp=2,pp=2,dp_shard=2"), "everything around attention"},
      {attention, layout("tp=2,recompute=full"), "recompute=full"},
      {cprun, layout("tp=2,recompute=full"), "the model is in small"},
  };
  for (const Lacking& lacking : all) {
    EmitCase request = lacking.request;
    if (const auto refusal = refuse(find_model(request.model).model, request.workload, layout_of(request))) {
      ADD_FAILURE() << request.layout << ": " << refusal->reason;
      continue;
    }
    EXPECT_THAT(cannot_of(lacking.framework, request), Contains(HasSubstr(lacking.sentence)))
        << name(lacking.framework) << " " << request.layout;
  }
}

TEST(EmitCannot, IsEmptyWhereEverythingIsSaid) {
  EXPECT_THAT(
      cannot_of(Framework::torchtitan,
                {"llama-3.1-8b", "tp=2,cp=4,dp_shard=2,strategy=ring,balance=head_tail,recompute=full"}),
      IsEmpty());
  EXPECT_THAT(cannot_of(Framework::deepspeed, {"llama-3.1-8b", "dp_shard=8"}), IsEmpty());
  EXPECT_THAT(cannot_of(Framework::vllm,
                        {"llama-3.1-8b", "tp=8,sequence_parallel=no", serving(Phase::decode, 8192, 8000)}),
              IsEmpty());
  EXPECT_THAT(cannot_of(Framework::deepspeed, {"llama-3.1-8b", "pp=2,dp_shard=4,zero=1"}),
              ::testing::ElementsAre(HasSubstr("stages are those of a PipelineModule")));
  // What a layout cannot say to Megatron either.
  EXPECT_THAT(cannot_of(Framework::megatron, {"llama-3.1-8b", "tp=8"}),
              ::testing::ElementsAre(HasSubstr("rotary base")));
}

// ---- flags ----

TEST(EmitVllm, FormatsOfWeightsAndCacheAreFlags) {
  const Transformer model = find_model("llama-3.1-8b").model;
  const EmitCase c{"llama-3.1-8b", "tp=8", serving(Phase::decode, 8192, 8000)};
  const auto text = [&](const EmitContext& context) {
    return emit(Framework::vllm, model, c.workload, layout_of(c), context).text;
  };
  EXPECT_THAT(text({c.model, 1, 8}),
              AllOf(HasSubstr("--kv-cache-dtype auto"), Not(HasSubstr("--quantization"))));
  EmitContext context{c.model, 1, 8, true};
  context.fp8_cache = true;
  EXPECT_THAT(text(context), AllOf(HasSubstr("--quantization fp8"), HasSubstr("--kv-cache-dtype fp8"),
                                   HasSubstr("matmuls in fp8, KV cache fp8")));
  context.predicted = "15.5 ms between tokens (13.9 ms to 17.6 ms), 12.1 s to the first";
  EXPECT_THAT(text(context),
              HasSubstr("\n# predicted: 15.5 ms between tokens (13.9 ms to 17.6 ms), 12.1 s to the first\n"));
  context.nvfp4_products = true;
  EXPECT_THAT(text(context), AllOf(HasSubstr("--quantization modelopt_fp4"), HasSubstr("matmuls in nvfp4")));
}

TEST(EmitMegatron, StrategiesAreItsTypesOfCommunication) {
  const auto text = [](const char* layout) { return text_of(Framework::megatron, {"llama-3.1-8b", layout}); };
  EXPECT_THAT(text("cp=4,strategy=ring,balance=head_tail"), HasSubstr("--cp-comm-type p2p\n"));
  EXPECT_THAT(text("cp=4,strategy=ulysses"), HasSubstr("--cp-comm-type a2a\n"));
  EXPECT_THAT(text("cp=4,strategy=all_gather,balance=head_tail"), HasSubstr("--cp-comm-type allgather\n"));
  EXPECT_THAT(text("cp=8,strategy=ulysses_ring,ulysses_degree=2,balance=head_tail"),
              HasSubstr("--cp-comm-type a2a+p2p\n--hierarchical-context-parallel-sizes 2 4\n"));
  EXPECT_THAT(text("tp=8"), Not(HasSubstr("--cp-comm-type")));
}

TEST(EmitMegatron, WhatIsShardedIsTheDistributedOptimizersStrategy) {
  const auto text = [](const char* layout) { return text_of(Framework::megatron, {"llama-3.1-8b", layout}); };
  const char *optimizer = "--use-distributed-optimizer\n", *fsdp = "--use-megatron-fsdp\n";
  for (const char* states : {"dp_shard=4,zero=1", "dp_shard=4,pp=2"})
    EXPECT_THAT(text(states), AllOf(HasSubstr(optimizer), Not(HasSubstr(fsdp)))) << states;
  EXPECT_THAT(text("dp_shard=4,zero=2"),
              AllOf(HasSubstr(fsdp), HasSubstr("--data-parallel-sharding-strategy optim_grads\n")));
  EXPECT_THAT(text("dp_shard=4"), HasSubstr("--data-parallel-sharding-strategy optim_grads_params\n"));
  EXPECT_THAT(text("tp=2"), HasSubstr("--sequence-parallel\n"));
  EXPECT_THAT(text("tp=2,sequence_parallel=no"), Not(HasSubstr("--sequence-parallel\n")));
  EXPECT_THAT(text("dp_shard=4,activations=host"), HasSubstr("--cpu-offloading-num-layers 31\n"));
}

TEST(EmitDeepspeed, WhatIsShardedIsAStage) {
  const auto text = [](const char* layout) {
    return text_of(Framework::deepspeed, {"llama-3.1-8b", layout});
  };
  EXPECT_THAT(text("dp_shard=4,zero=1"), HasSubstr("\"stage\": 1"));
  EXPECT_THAT(text("dp_shard=4,zero=2"), HasSubstr("\"stage\": 2"));
  EXPECT_THAT(text("dp_shard=4"), HasSubstr("\"stage\": 3"));
  EXPECT_THAT(text("dp_shard=4,pp=2"), HasSubstr("\"stage\": 1"));
  EXPECT_THAT(text("dp_replicate=4"), HasSubstr("\"stage\": 0"));
  EXPECT_THAT(text("dp_shard=4,recompute=full,activations=host"), HasSubstr("\"cpu_checkpointing\": true"));
}

TEST(EmitMegatron, EvenVirtualStagesAreCountedInLayers) {
  EXPECT_THAT(text_of(Framework::megatron, {"llama-3.1-8b", "pp=4,virtual_stages=2,tp=2"}),
              HasSubstr("--num-layers-per-virtual-pipeline-stage 4\n"));
}

TEST(EmitMegatron, OptimizersAndDtypes) {
  EmitCase request = {"llama-3.1-8b", "tp=2,dp_shard=2,dp_replicate=2"};
  request.workload.optimizer = parse_optimizer("adamw_16:offload");
  request.workload.gradient_dtype = DType::bf16;
  EXPECT_THAT(
      text_of(Framework::megatron, request),
      AllOf(HasSubstr("--exp-avg-dtype bf16\n"), HasSubstr("--optimizer-cpu-offload\n"),
            HasSubstr("--grad-reduce-in-bf16\n"), HasSubstr("--num-distributed-optimizer-instances 2\n")));
  request.workload.optimizer = parse_optimizer("sgd_momentum");
  request.workload.dtype = DType::f16;
  EXPECT_THAT(text_of(Framework::megatron, request),
              AllOf(HasSubstr("--optimizer sgd\n--sgd-momentum 0.9\n"), HasSubstr("--fp16\n")));
}

TEST(EmitVllm, ServesRepositoriesAndFolders) {
  const auto served = [](const std::string& model) {
    Transformer read = find_model("llama-3.1-8b").model;
    if (model.find('/') != std::string::npos) read.name = "mine";
    const Emitted out = emit(Framework::vllm, read, serving(Phase::decode, 8192, 8000, 1),
                             parse_parallel_layout("tp=8"), {model, 1, 8});
    return out.text.substr(out.text.find("vllm serve "));
  };
  EXPECT_THAT(served("llama-3.1-8b"), HasSubstr("vllm serve meta-llama/Llama-3.1-8B \\\n"));
  EXPECT_THAT(served("/data/mine/config.json"), HasSubstr("vllm serve /data/mine \\\n"));
}

// What the prediction counts: in the model's dtype states would be half as large.
TEST(EmitVllm, KeepsStatesOfRecurrentLayersInF32) {
  const Workload decode = serving(Phase::decode, 8192, 8000);
  EXPECT_THAT(text_of(Framework::vllm, {"nemotron-h-8b", "tp=8", decode}),
              HasSubstr("--mamba-ssm-cache-dtype float32"));
  EXPECT_THAT(text_of(Framework::vllm, {"llama-3.1-8b", "tp=8", decode}), ::testing::Not(HasSubstr("mamba")));
}

TEST(EmitVllm, UnevenStagesAreAPartition) {
  const EmitCase request = {"llama-3.1-8b", "tp=2,pp=3", serving(Phase::decode, 8192, 8000)};
  EXPECT_THAT(text_of(Framework::vllm, request), HasSubstr("VLLM_PP_LAYER_PARTITION=11,11,10 vllm serve"));
}

// ---- scenarios ----

// The strategy that a scenario means.
Strategy strategy_of(const proto::Attention& run, const AttentionProblem& problem, int cp) {
  StrategyRequest named{run.strategy(), {}, {}};
  if (run.has_ulysses_degree()) named.ulysses_degree = run.ulysses_degree();
  if (run.has_inner_ring()) named.inner_ring = run.inner_ring();
  Strategy strategy = named_strategy(named, problem, cp);
  strategy.balance = parse_balance(run.balance());
  strategy.ulysses_inner = run.axis_order() != "ring_inner";
  if (run.rotation() == "all_gather") strategy.rotation = Strategy::Rotation::all_gather;
  return strategy;
}

class EmittedScenario : public ::testing::TestWithParam<const char*> {};

// What is read is the layout's attention, and it runs, reduced, with clean ledgers.
TEST_P(EmittedScenario, MeansTheSameAttentionAndRuns) {
  const EmitCase request = {"llama-3.1-8b", str("tp=2,cp=4,dp_shard=2,micro_batch=2,strategy=", GetParam())};
  const ParallelLayout layout = layout_of(request);
  const Transformer model = find_model(request.model).model;
  AttentionProblem problem = attention_problem(model, request.workload, layout, model.kinds.front());
  const proto::Scenario scenario =
      read_scenario_text(text_of(Framework::attention, request), "emitted.txtpb");
  ASSERT_TRUE(scenario.has_run());
  const proto::Attention& run = scenario.run();
  EXPECT_EQ(run.mesh(), "cp=4");
  EXPECT_EQ(run.seq_len(), problem.q_len);
  EXPECT_EQ(run.batch(), 2);
  EXPECT_EQ(run.q_heads(), 16);
  EXPECT_EQ(run.kv_heads(), 4);
  EXPECT_EQ(run.head_dim(), 128);
  EXPECT_EQ(run.dtype(), to_proto(DType::bf16));
  EXPECT_TRUE(run.causal() && run.backward());
  const Strategy strategy = strategy_of(run, problem, 4);
  EXPECT_EQ(strategy, layout.strategy);

  problem.batch = 1, problem.q_len = problem.kv_len = 37, problem.head_dim = problem.v_head_dim = 8;
  problem.dtype = DType::f32;
  AttentionRunOptions options;
  options.backward = true;
  EXPECT_TRUE(
      run_attention(AttentionTestData(problem, 1), {problem, {0, 1, 2, 3}, strategy}, options).holds());
}

INSTANTIATE_TEST_SUITE_P(Strategies, EmittedScenario,
                         ::testing::Values("ring,balance=head_tail", "ulysses",
                                           "all_gather,balance=head_tail_exchange",
                                           "double_ring,balance=head_tail", "need_only,balance=cost:64",
                                           "pass_q,balance=head_tail",
                                           "ulysses_ring,ulysses_degree=2,balance=striped:8",
                                           "ulysses_ring,ulysses_degree=2,axis_order=ring_inner",
                                           "ring,rotation=all_gather,balance=head_tail"));

// A layout's whole step: what is written is trained, whatever the layout splits, and the loss falls.
class EmittedTraining : public ::testing::TestWithParam<EmitCase> {};

TEST_P(EmittedTraining, TrainsTheLayoutInSmall) {
  const EmitCase& request = GetParam();
  const proto::Scenario scenario = read_scenario_text(text_of(Framework::cprun, request), "emitted.txtpb");
  ASSERT_TRUE(scenario.has_train());
  proto::Train train = scenario.train();
  EXPECT_EQ(train.dtype(), to_proto(request.workload.dtype));
  EXPECT_EQ(train.optimizer(), to_string(request.workload.optimizer));
  train.set_steps(3), train.set_warmup_steps(0);
  const TrainJob job = make_train_job(train);
  EXPECT_EQ(job.request.layout, layout_of(request));
  EXPECT_LT(job.request.model.hidden, 100);
  // Gradients of several micro-batches are added up where the workload has several.
  const std::int64_t planned = accumulation(request.workload, layout_of(request));
  EXPECT_GE(accumulation(job.request.workload, job.request.layout), std::min<std::int64_t>(planned, 2));
  const std::vector<double> losses = train_on_threads(job, {}).result.losses;
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_LT(losses.back(), losses.front());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, EmittedTraining,
    ::testing::Values(
        EmitCase{"llama-3.1-8b", "tp=2,cp=2,dp_shard=2,strategy=ring,balance=head_tail,recompute=full"},
        // More heads than models in small have otherwise.
        EmitCase{"qwen2.5-7b", "tp=4,cp=7,strategy=ulysses", training(4096, 2)},
        EmitCase{"qwen3-next-80b-a3b", "cp=2,ep=2,strategy=ring,scan=sequential", training(4096, 2)}));

// Where the layout splits more of them, a model in small has as many stages, layers of a stage, experts and
// micro-batches.
TEST(EmitCprun, HasWhatTheLayoutSplits) {
  const auto trained = [](const EmitCase& request) {
    return make_train_job(read_scenario_text(text_of(Framework::cprun, request), "f").train()).request;
  };
  const StepRequest stages =
      trained({"llama-3.1-8b", "pp=4,virtual_stages=2,recompute=every:2", training(4096, 8)});
  EXPECT_EQ(stages.model.layers, 16);
  EXPECT_EQ(accumulation(stages.workload, stages.layout), 4);
  const StepRequest experts = trained({"qwen3-30b-a3b", "dp_shard=32,tp=16,ep=32", training(4096, 64)});
  EXPECT_EQ(experts.model.experts->count, 32);
  EXPECT_EQ(experts.model.experts->intermediate % 16, 0);
  EXPECT_EQ(trained({"llama-3.1-8b", "dp_shard=4", training(4096, 8)}).model.layers, 4);
  const StepRequest recurrent = trained({"nemotron-h-8b", "tp=4,cp=2,strategy=ring", training(8192, 2)});
  ASSERT_TRUE(recurrent.model.recurrence);
  EXPECT_EQ(recurrent.model.recurrence->key_heads % 4, 0);
}

// Columns of a convolution are dealt to 32 ranks, and pieces of heads to four.
TEST(EmitCprun, HasColumnsAndHeadsForAllRanks) {
  const auto trained = [](const char* model, const char* layout) {
    return make_train_job(
               read_scenario_text(text_of(Framework::cprun, {model, layout, training(4096, 32)}), "f")
                   .train())
        .request.model;
  };
  EXPECT_EQ(trained("lfm2-2.6b", "tp=32").hidden % 32, 0);
  for (const char* model : {"lfm2-8b-a1b", "llama-3.1-8b"})
    EXPECT_EQ(trained(model, "cp=2,strategy=ulysses,pieces=2").kv_heads % 4, 0) << model;
}

// Nothing trains what serves.
TEST(EmitCprun, WritesAttentionOfWhatDoesNotTrain) {
  EXPECT_TRUE(read_scenario_text(text_of(Framework::cprun, {"llama-3.1-8b", "tp=4,cp=2,strategy=ring",
                                                            serving(Phase::prefill, 8192, 0)}),
                                 "f")
                  .has_run());
}

// Latent rows travel, as in the step; where a token is written, they are one head's keys, and values of their
// own in the scenario, by the scale of the heads that they stand for.
TEST(EmitAttention, LatentAttentionIsThatOfTheStep) {
  const auto run = [](const char* layout, const Workload& workload) {
    return read_scenario_text(text_of(Framework::attention, {"deepseek-v3", layout, workload}), "f").run();
  };
  const proto::Attention trained = run("tp=8,cp=4,strategy=ring,keys=latent", training(8192, 8));
  EXPECT_EQ(trained.latent(), 512);
  EXPECT_EQ(trained.rope_dim(), 64);
  EXPECT_EQ(trained.keys(), "latent");
  EXPECT_EQ(trained.kv_heads(), 16);
  EXPECT_EQ(trained.head_dim(), 192);
  EXPECT_EQ(run("tp=8,cp=4,strategy=ring", training(8192, 8)).latent(), 0);
  const proto::Attention prefill = run("tp=8,cp=4,strategy=ring", serving(Phase::prefill, 8192, 0));
  EXPECT_EQ(prefill.latent(), 512);
  EXPECT_EQ(prefill.keys(), "heads");
  const proto::Attention decode = run("tp=8,cp=4,strategy=pass_q", serving(Phase::decode, 8192, 8000));
  EXPECT_EQ(decode.latent(), 0);
  EXPECT_EQ(decode.kv_heads(), 1);
  EXPECT_EQ(decode.head_dim(), 576);
  EXPECT_EQ(decode.v_head_dim(), 512);
  // Of the step's heads, times what DeepSeek takes of YaRN (mscale_all_dim is 1).
  EXPECT_DOUBLE_EQ(decode.softmax_scale(), std::pow(0.1 * std::log(40) + 1, 2) / std::sqrt(192.0));
}

// All 16 ranks hold the same latent rows, so that as many may share a cache.
TEST(EmitVllm, LatentRowsAreSharedByAllRanks) {
  const EmitCase request = {"deepseek-v3", "tp=16,cp=2,sequence_parallel=no,strategy=pass_q",
                            serving(Phase::decode, 8192, 8000)};
  EXPECT_THAT(text_of(Framework::vllm, request), HasSubstr("--decode-context-parallel-size 2"));
}

TEST(EmitAttention, ServingAsksWhatTheStepDoes) {
  const auto run = [](const Workload& workload) {
    return read_scenario_text(
               text_of(Framework::attention, {"llama-3.1-8b", "tp=4,cp=2,strategy=pass_q", workload}), "f")
        .run();
  };
  const proto::Attention prefill = run(serving(Phase::prefill, 8192, 4096));
  EXPECT_EQ(prefill.seq_len(), 4096);
  EXPECT_EQ(prefill.kv_len(), 8192);
  EXPECT_FALSE(prefill.backward());
  const proto::Attention decode = run(serving(Phase::decode, 8192, 8000));
  EXPECT_EQ(decode.seq_len(), 1);
  EXPECT_EQ(decode.kv_len(), 8192);
}

TEST(EmitMegatron, LatentAttentionHasItsRanksAndHeads) {
  const auto text_of = [](const char* name) {
    return emit(Framework::megatron, find_model(name).model, training(4096, 8),
                parse_parallel_layout("ep=8,dp_shard=8"), {"m", 1, 8})
        .text;
  };
  EXPECT_THAT(
      text_of("deepseek-v3"),
      AllOf(HasSubstr("--multi-latent-attention\n--q-lora-rank 1536\n--kv-lora-rank 512\n--qk-head-dim "
                      "128\n--qk-pos-emb-head-dim 64\n--v-head-dim 128\n--qk-layernorm\n"),
            Not(HasSubstr("--kv-channels")), Not(HasSubstr("--group-query-attention"))));
  EXPECT_THAT(text_of("deepseek-v2-lite"), AllOf(HasSubstr("--multi-latent-attention\n--kv-lora-rank 512\n"),
                                                 Not(HasSubstr("--q-lora-rank"))));
}

TEST(EmitMegatron, PredictionLayersHaveAFlagAndStandOnTheLastStage) {
  Transformer model = find_model("deepseek-v2-lite").model;
  model.prediction_layers = 2;
  const auto text = [&](const char* layout) {
    return emit(Framework::megatron, model, training(4096, 8), parse_parallel_layout(layout), {"m", 1, 8})
        .text;
  };
  EXPECT_THAT(text("tp=8"), HasSubstr("--mtp-num-layers 2\n"));
  EXPECT_THAT(text("pp=2,tp=4"), HasSubstr("'Et*15|t*12m*2L'"));
  model.prediction_layers = 0;
  EXPECT_THAT(text("tp=8"), Not(HasSubstr("mtp")));
}

// None of these gives a rank the rows before its own, which a convolution sees.
TEST(EmitCannot, SaysOfConvolutionsWhoHasNone) {
  for (const Framework framework : {Framework::megatron, Framework::torchtitan, Framework::deepspeed})
    EXPECT_THAT(text_of(framework, {"lfm2-2.6b", "cp=2,strategy=ulysses,dp_shard=2"}),
                HasSubstr("layers with a convolution: "))
        << name(framework);
}

TEST(EmitMegatron, SaysWhichLayersHaveAWindow) {
  const auto text_of_layers = [](const std::vector<LayerKind>& layers) {
    Transformer model = find_model("mistral-7b").model;
    model.layers = static_cast<std::int64_t>(layers.size());
    set_layers(model, layers);
    const Emitted out =
        emit(Framework::megatron, model, training(32768, 2), parse_parallel_layout("tp=2"), {"m", 1, 2});
    return out.text;
  };
  EXPECT_THAT(text_of_layers({{128, {}}, {128, {}}}),
              AllOf(HasSubstr("--window-size '(127, 0)'"), Not(HasSubstr("--window-attn-skip-freq"))));
  EXPECT_THAT(text_of_layers({{128, {}}, {}, {128, {}}}),
              AllOf(HasSubstr("--window-size '(127, 0)'"), HasSubstr("--window-attn-skip-freq '[1,0,1]'")));
  EXPECT_THAT(text_of_layers({{128, {}}, {64, {}}}),
              AllOf(HasSubstr("windows of 128, 64 tokens"), Not(HasSubstr("--window-size '"))));
  EXPECT_THAT(text_of_layers({{{}, 256}, {}}), HasSubstr("within chunks of 256 tokens"));
}

TEST(EmitAttention, WindowsAndTheAbsenceOfContextParallelismAreSaid) {
  Transformer windowed = find_model("mistral-7b").model;
  windowed.kinds.front().window = 4096;
  const Emitted out =
      emit(Framework::attention, windowed, training(32768, 2), parse_parallel_layout("tp=2"), {"m", 1, 2});
  const proto::Attention run = read_scenario_text(out.text, "f").run();
  EXPECT_EQ(run.mesh(), "cp=1");
  EXPECT_EQ(run.window(), 4096);
  EXPECT_EQ(run.strategy(), "");
}

// What the search chose, and what the profile of the software measured, reach cprun.
TEST(EmitAttention, PiecesSlotsAndChannelsAreSaid) {
  const EmitCase request = {"llama-3.1-8b", "cp=4,strategy=all_gather,pieces=4"};
  EmitContext context{request.model, 1, 4};
  context.max_ctas = 6;
  const auto scenario = [&](const char* layout) {
    const Emitted out = emit(Framework::attention, find_model(request.model).model, request.workload,
                             parse_parallel_layout(layout), context);
    return read_scenario_text(out.text, "f");
  };
  EXPECT_EQ(scenario("cp=4,strategy=all_gather,pieces=4").run().pieces(), 4);
  EXPECT_EQ(scenario("cp=4,strategy=ring,slots=3").run().slots(), 3);
  EXPECT_EQ(scenario("cp=4,strategy=ring").nccl().max_ctas(), 6);
  context.max_ctas = 0;
  EXPECT_FALSE(scenario("cp=4,strategy=ring").has_nccl());
  EXPECT_FALSE(scenario("cp=4,strategy=ring").run().has_slots());
  EXPECT_EQ(scenario("cp=4,strategy=ring,merges=beside").run().merges(), "beside");
  EXPECT_EQ(scenario("cp=4,strategy=ring").run().merges(), "");
}

// Frameworks have no word for either, and say so.
TEST(EmitErrors, PiecesAndSlotsAreLostOnFrameworks) {
  for (const Framework framework : {Framework::megatron, Framework::torchtitan}) {
    const EmitCase request = {"llama-3.1-8b", "cp=4,strategy=all_gather,balance=head_tail,pieces=2"};
    EXPECT_THAT(emitted(framework, request).cannot,
                Contains(HasSubstr("pieces=2: it moves all heads at once")));
    const EmitCase ring = {"llama-3.1-8b", "cp=4,strategy=ring,balance=head_tail,slots=3"};
    EXPECT_THAT(emitted(framework, ring).cannot, Contains(HasSubstr("slots=3: it has no choice of them")));
    const EmitCase beside = {"llama-3.1-8b", "cp=4,strategy=ring,balance=head_tail,merges=beside"};
    EXPECT_THAT(emitted(framework, beside).cannot,
                Contains(HasSubstr("merges=beside: it has no choice of the stream they run on")));
  }
  const EmitCase ulysses = {"llama-3.1-8b", "cp=4,strategy=ulysses,pieces=2"};
  EXPECT_THAT(emitted(Framework::deepspeed, ulysses).cannot,
              Contains(HasSubstr("pieces=2: it moves all heads at once")));
}

// ---- errors ----

TEST(EmitErrors, SayWhatWouldWork) {
  const auto error = [](Framework framework, const EmitCase& request) {
    return message_of([&] { emitted(framework, request); });
  };
  EXPECT_EQ(
      message_of([] { parse_framework("megatron-lm"); }),
      "unknown framework 'megatron-lm'; use one of megatron, torchtitan, deepspeed, vllm, cprun, attention");
  EXPECT_EQ(parse_framework("vllm"), Framework::vllm);
  EXPECT_EQ(error(Framework::vllm, {"llama-3.1-8b", "tp=8"}),
            "vllm does not train, and the phase is training; use one of megatron, torchtitan, deepspeed, "
            "cprun, attention");
  EXPECT_EQ(error(Framework::torchtitan, {"llama-3.1-8b", "tp=8", serving(Phase::decode, 8192, 8000)}),
            "torchtitan does not serve, and the phase is decode; use one of vllm, cprun, attention");
  EXPECT_THAT(error(Framework::megatron, {"llama-3.1-8b", "tp=3"}),
              HasSubstr("the layout tp=3 cannot run: "));
  EXPECT_THAT(message_of([] {
                emit(Framework::megatron, find_model("llama-3.1-8b").model, training(),
                     parse_parallel_layout("tp=8"), {"m", 2, 8});
              }),
              HasSubstr("the layout tp=8 uses 8 GPUs, but there are 16 on 2 nodes of 8"));
}

}  // namespace
}  // namespace cp::sim
