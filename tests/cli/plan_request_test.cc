// What flags and scenarios of cpsim plan mean.
#include "cli/cpsim/plan/plan_request.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "sim/planner/search/question.h"
#include "sim/scenario/plan_fixed.h"
#include "tests/support/messages.h"

namespace cp::cli {
namespace {

using ::cp::testing::message_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Job = proto::PlanLayouts;

Job training() {
  Job job;
  job.set_model("llama-3.1-8b");
  job.set_nodes(2);
  job.set_seq_len(131072);
  job.set_global_batch(16);
  return job;
}

Job serving(Job::Phase phase) {
  Job job = training();
  job.clear_global_batch();
  job.set_phase(phase);
  return job;
}

template <class Change>
std::string error_after(Job job, const Change& change) {
  change(job);
  return message_of([&] { make_plan_question(job); });
}

TEST(PlanRequest, DefaultsAreTakenAndMarked) {
  const sim::PlanQuestion question = make_plan_question(training());
  EXPECT_EQ(question.cluster.name, "dgx-h100");
  EXPECT_EQ(question.cluster.num_gpus(), 16);
  EXPECT_EQ(question.software.name, "cprun");
  EXPECT_EQ(question.workload.phase, Phase::training);
  EXPECT_EQ(question.workload.dtype, DType::bf16);
  EXPECT_EQ(question.workload.gradient_dtype, DType::f32);
  EXPECT_EQ(question.workload.optimizer.name, "adamw");
  EXPECT_EQ(question.top, 5);
  for (const char* assumed : {"cluster dgx-h100", "software cprun", "phase training",
                              "dtype bf16, as the config stores it", "gradient_dtype f32", "optimizer adamw"})
    EXPECT_THAT(question.assumptions, Contains(assumed));
}

TEST(PlanRequest, WhatIsGivenIsNotAssumed) {
  Job job = training();
  job.set_cluster("hgx-h200");
  job.set_software("megatron");
  job.set_phase(Job::training);
  job.set_dtype(proto::f16);
  job.set_gradient_dtype(proto::bf16);
  job.set_optimizer("sgd:offload");
  const sim::PlanQuestion question = make_plan_question(job);
  EXPECT_EQ(question.cluster.name, "hgx-h200");
  EXPECT_EQ(question.software.name, "megatron");
  EXPECT_EQ(question.workload.dtype, DType::f16);
  EXPECT_EQ(question.workload.gradient_dtype, DType::bf16);
  EXPECT_TRUE(question.workload.optimizer.offload);
  EXPECT_EQ(question.assumptions, std::vector<std::string>());
}

TEST(PlanRequest, TheBatchMayBeGivenInTokens) {
  Job job = training();
  job.clear_global_batch();
  job.set_global_batch_tokens(131072 * 24);
  EXPECT_EQ(make_plan_question(job).workload.global_batch, 24);
}

TEST(PlanRequest, DocumentsArePackedIntoSequencesOfATraining) {
  Job job = training();
  job.set_documents("0/4096/131072");
  EXPECT_THAT(make_plan_question(job).workload.cu_seqlens, ::testing::ElementsAre(0, 4096, 131072));
  EXPECT_THAT(plan_command(job), HasSubstr(" --documents 0/4096/131072"));
  EXPECT_THAT(error_after(job, [](Job& j) { j.set_documents("0/4096"); }),
              HasSubstr("cu_seqlens=0/4096 must begin with 0, ascend, and end with seq_len=131072"));
  EXPECT_THAT(error_after(job, [](Job& j) { j.set_documents("0/many"); }), HasSubstr("--documents 0/many: "));
  EXPECT_EQ(error_after(serving(Job::prefill), [](Job& j) { j.set_documents("0/10"); }),
            "--documents does not apply to prefill; leave it out: each request is one sequence, and they are "
            "packed in training");
}

TEST(PlanRequest, PredictionLayersArePlannedWhereTheyAreAskedFor) {
  Job job = training();
  job.set_model("deepseek-v3"), job.set_mtp_layers(1);
  const sim::PlanQuestion question = make_plan_question(job);
  EXPECT_EQ(question.model.prediction_layers, 1);
  EXPECT_THAT(question.assumptions, Not(Contains(HasSubstr("(MTP)"))));
  EXPECT_THAT(plan_command(job), HasSubstr(" --mtp-layers 1"));
  // Where a framework's models have none, it is planned without them, which is said.
  const sim::PlanQuestion emitted = make_plan_question(job, sim::Framework::torchtitan);
  EXPECT_EQ(emitted.model.prediction_layers, 0);
  EXPECT_THAT(emitted.unsaid, Contains("--mtp-layers 1: its models predict the next token alone"));
  EXPECT_EQ(make_plan_question(job, sim::Framework::megatron).model.prediction_layers, 1);
  EXPECT_EQ(error_after(job, [](Job& j) { j.set_mtp_layers(2); }),
            "--mtp-layers 2: num_nextn_predict_layers of deepseek-v3 is 1; use at most 1");
  EXPECT_EQ(error_after(job, [](Job& j) { j.set_model("llama-3.1-8b"); }),
            "--mtp-layers 1: the config of llama-3.1-8b has no layers that predict further tokens "
            "(num_nextn_predict_layers is 0 or missing); leave it out");
  job.clear_mtp_layers();
  Job served = serving(Job::prefill);
  EXPECT_EQ(error_after(served, [](Job& j) { j.set_model("deepseek-v3"), j.set_mtp_layers(1); }),
            "--mtp-layers does not apply to prefill; leave it out: layers that predict further tokens are of "
            "training");
  EXPECT_THAT(make_plan_question(job).assumptions,
              Contains(HasSubstr("(MTP) are neither counted nor timed")));
}

TEST(PlanRequest, LimitsAndFixedPartsAreTaken) {
  Job job = training();
  job.set_micro_batch(2);
  job.set_recompute("every:4");
  job.set_max_memory(40);
  job.set_top(3);
  job.add_fix("tp=8, cp=2,strategy=ulysses_ring,ulysses_degree=2");
  job.add_fix("balance=striped:16,order=cp-tp-dp-pp,sharding=dp_shard,loss_chunks=4,tp=4");
  const sim::PlanQuestion question = make_plan_question(job);
  EXPECT_EQ(question.fixed.micro_batch, 2);
  EXPECT_EQ(question.fixed.recompute, (Recompute{Recompute::Kind::every, 4}));
  EXPECT_EQ(question.fixed.tp, 4) << "the last one counts";
  EXPECT_EQ(question.fixed.cp, 2);
  EXPECT_EQ(question.fixed.pp, std::nullopt);
  EXPECT_EQ(question.fixed.strategy, "ulysses_ring");
  EXPECT_EQ(question.fixed.ulysses_degree, 2);
  EXPECT_EQ(question.fixed.balance, (Balance{Balance::Kind::striped, 16}));
  EXPECT_EQ(question.fixed.order, AxisOrder::cp_tp_dp_pp);
  EXPECT_EQ(question.fixed.sharding, ShardingGroup::dp_shard);
  EXPECT_EQ(question.fixed.loss_chunks, 4);
  EXPECT_EQ(question.max_memory_gib, 40);
  EXPECT_EQ(question.top, 3);
  job.set_recompute("auto");
  EXPECT_EQ(make_plan_question(job).fixed.recompute, std::nullopt);
}

// Every key of a layout's text can be fixed.
TEST(PlanRequest, EveryPartOfALayoutCanBeFixed) {
  for (const char* text : {"dp_replicate=2",
                           "dp_shard=2",
                           "cp=2",
                           "tp=2",
                           "pp=2",
                           "ep=2",
                           "virtual_stages=2",
                           "strategy=ring",
                           "ulysses_degree=2",
                           "inner_ring=2",
                           "axis_order=ring_inner",
                           "rotation=all_gather",
                           "balance=head_tail",
                           "slots=3",
                           "pieces=2",
                           "merges=beside",
                           "window_strategy=need_only",
                           "window_balance=contiguous",
                           "window_balance=same",
                           "scan=sequential",
                           "scan_balance=head_tail",
                           "keys=latent",
                           "sharding=dp_shard_cp",
                           "order=tp-cp-pp-dp",
                           "micro_batch=2",
                           "recompute=full",
                           "loss_chunks=2",
                           "mlp_chunks=4",
                           "zero=1",
                           "sequence_parallel=no",
                           "activations=host"}) {
    EXPECT_EQ(sim::fixed_text(sim::parse_fixed({text})), text);
  }
}

// dp is dp_shard's old name; -1 leaves the degree to what remains.
TEST(PlanRequest, DegreesHaveTheNamesOfParallelDims) {
  EXPECT_EQ(sim::fixed_text(sim::parse_fixed({"dp=4,cp=8"})), "cp=8,dp_shard=4");
  EXPECT_EQ(sim::fixed_text(sim::parse_fixed({"dp=4,cp=8"}, Phase::decode)), "cp=8,dp_replicate=4");
  EXPECT_EQ(sim::fixed_text(sim::parse_fixed({"dp_shard=-1,tp=2"})), "tp=2");
  EXPECT_EQ(sim::fixed_text(sim::parse_fixed({"tp=2,etp=2,ep=4"})), "tp=2,ep=4");
  EXPECT_EQ(
      sim::fixed_text(sim::parse_fixed({"cp=8,dp=2,ring,u=4,head_tail,selective,loss=4"})),
      "cp=8,dp_shard=2,strategy=ring,ulysses_degree=4,balance=head_tail,recompute=selective,loss_chunks=4");
  EXPECT_THAT(message_of([] {
                sim::parse_fixed({"dp=4", "dp_shard=2"});
              }),
              HasSubstr("dp=4 and dp_shard=2 are two names of one degree"));
  EXPECT_THAT(message_of([] { sim::parse_fixed({"dp=4,dp_replicate=2"}, Phase::prefill); }),
              HasSubstr("dp=4 and dp_replicate=2: serving shards no parameters"));
  EXPECT_THAT(message_of([] { sim::parse_fixed({"tp=4,etp=1"}); }), HasSubstr("etp=1 with tp=4"));
  const sim::PlanQuestion question = make_plan_question(training());
  EXPECT_EQ(to_string(parse_layout_of(question, "--explain", "dp=8,tp=2")), "tp=2,dp_shard=8");
  EXPECT_EQ(to_string(parse_layout_of(question, "--explain", "dp=-1,tp=2,dp_replicate=2")),
            "tp=2,dp_shard=4,dp_replicate=2");
  EXPECT_THAT(message_of([&] { parse_layout_of(question, "--explain", "dp=4,tp=2"); }),
              HasSubstr("--explain dp=4,tp=2: dp_replicate*dp_shard*cp*tp*pp=8 is not world_size=16"));
  const sim::PartialLayout some = parse_partial_layout(question, "--explain", "dp=4,cp=2");
  EXPECT_EQ(fixed_text(some.given), "cp=2,dp_shard=4");
  EXPECT_FALSE(some.as_written);
  Job job = serving(Job::prefill);
  job.set_concurrent(8);
  const sim::PlanQuestion served = make_plan_question(job);
  EXPECT_EQ(to_string(parse_layout_of(served, "--explain", "tp=8,dp=2")),
            "tp=8,dp_replicate=2,micro_batch=4");
}

TEST(PlanRequest, GpusAreWholeNodesOrAPartOfOne) {
  Job job = training();
  job.clear_nodes();
  job.set_gpus(24);
  EXPECT_EQ(make_plan_question(job).cluster.nodes, 3);
  for (const int gpus : {1, 2, 4}) {
    job.set_gpus(gpus);
    EXPECT_EQ(make_plan_question(job).cluster.num_gpus(), gpus);
  }
  for (const char* cluster : {"a100-pcie", "gb200-nvl72", "l20-pcie", "hgx-b200"}) {
    job.set_cluster(cluster);
    job.set_gpus(2);
    EXPECT_EQ(make_plan_question(job).cluster.num_gpus(), 2) << cluster;
  }
}

TEST(PlanRequest, ServingCountsRequestsAndItsCache) {
  Job job = serving(Job::prefill);
  job.set_concurrent(4);
  job.set_cached(1024);
  sim::PlanQuestion question = make_plan_question(job);
  EXPECT_EQ(question.workload.phase, Phase::prefill);
  EXPECT_EQ(question.workload.global_batch, 4);
  EXPECT_EQ(question.workload.cached, 1024);
  EXPECT_THAT(question.assumptions, AllOf(Contains("kv_dtype bf16"), Not(Contains("optimizer adamw"))));

  job = serving(Job::decode);
  job.clear_seq_len();
  job.set_cached(131072);
  job.set_new_tokens(256);
  job.set_kv_dtype(proto::f16);
  job.set_ttft_max(5000);
  question = make_plan_question(job);
  EXPECT_EQ(question.workload.seq_len, 131072 + 256);
  EXPECT_EQ(question.workload.global_batch, 1);
  EXPECT_EQ(question.workload.kv_dtype, DType::f16);
  EXPECT_EQ(question.max_ttft_ms, 5000);
  EXPECT_THAT(question.assumptions, Contains("concurrent 1"));

  job = serving(Job::decode);  // what the cache has is what is left of the length
  question = make_plan_question(job);
  EXPECT_EQ(question.workload.cached, 131072 - 128);
  EXPECT_THAT(question.assumptions, AllOf(Contains("new_tokens 128"), Contains(HasSubstr("cached 130944"))));
}

TEST(PlanRequest, ALongerSequenceThanTheModelWasTrainedForIsMarked) {
  Job job = training();
  job.set_seq_len(1 << 20);
  EXPECT_THAT(make_plan_question(job).assumptions,
              Contains("positions reach beyond max_position_embeddings 131072 to 1048576"));
}

TEST(PlanRequest, LayoutsTakeAllGpus) {
  const sim::PlanQuestion question = make_plan_question(training());
  EXPECT_EQ(to_string(parse_layout_of(question, "--baseline", "tp=2,cp=4,strategy=ring,balance=head_tail")),
            "tp=2,cp=4,dp_shard=2,strategy=ring,balance=head_tail");
  Job job = serving(Job::prefill);
  job.set_concurrent(8);
  const sim::PlanQuestion served = make_plan_question(job);
  EXPECT_EQ(to_string(parse_layout_of(served, "--baseline", "tp=8")), "tp=8,dp_replicate=2,micro_batch=4");
}

TEST(PlanRequest, ALayoutHasTheMicroBatchAndRecomputationThatAreFixed) {
  Job job = training();
  job.set_micro_batch(2);
  job.set_recompute("full");
  const sim::PlanQuestion question = make_plan_question(job);
  EXPECT_EQ(to_string(parse_layout_of(question, "--explain", "tp=8")),
            "tp=8,dp_shard=2,micro_batch=2,recompute=full");
  EXPECT_EQ(to_string(parse_layout_of(question, "--explain", "tp=8,micro_batch=1,recompute=none")),
            "tp=8,dp_shard=2");
}

TEST(PlanRequest, ALayoutOfWhichKeysAreMissingKeepsTheGivenOnes) {
  const sim::PlanQuestion question = make_plan_question(training());
  const sim::PartialLayout some = parse_partial_layout(question, "--explain", "tp=4,balance=head_tail");
  EXPECT_EQ(some.text, "tp=4,balance=head_tail");
  EXPECT_EQ(sim::fixed_text(some.given), "tp=4,balance=head_tail");
  ASSERT_TRUE(some.as_written);
  EXPECT_EQ(to_string(*some.as_written), "tp=4,dp_shard=4");
  // Degrees that leave GPUs to others are the search's to complete.
  const sim::PartialLayout less = parse_partial_layout(question, "--explain", "tp=4,dp_shard=2");
  EXPECT_EQ(less.given.dp_shard, 2);
  EXPECT_FALSE(less.as_written);
  EXPECT_THAT(message_of([&] { parse_partial_layout(question, "--explain", "tp=4,dp_shard=8"); }),
              HasSubstr("--explain tp=4,dp_shard=8 takes 32 GPUs, and 32 does not divide the 16 GPUs that "
                        "there are; use tp=2,dp_shard=8"));
  EXPECT_THAT(message_of([&] { parse_partial_layout(question, "--explain", "tpp=4"); }),
              HasSubstr("is not a key=value that a layout has"));
}

// Number formats are the question's: no profile hides them.
TEST(PlanRequest, ProductsAreInTheDtypeUnlessFp8IsAskedFor) {
  Job job = training();
  for (const char* software : {"cprun", "torchtitan", "megatron"}) {
    job.set_software(software);
    job.set_linear_dtype("");
    EXPECT_FALSE(sim::fp8_products(make_plan_question(job))) << software;
    job.set_linear_dtype("fp8");
    EXPECT_TRUE(sim::fp8_products(make_plan_question(job))) << software;
    EXPECT_EQ(sim::linear_dtype_name(make_plan_question(job)), "fp8");
    job.set_linear_dtype("bf16");
    EXPECT_EQ(sim::linear_dtype_name(make_plan_question(job)), "bf16");
  }
  EXPECT_THAT(error_after(training(), [](Job& j) { j.set_linear_dtype("f16"); }),
              AllOf(HasSubstr("--linear-dtype f16 is unknown"), HasSubstr("of --dtype, bf16, or in fp8")));
  EXPECT_THAT(error_after(training(),
                          [](Job& j) {
                            j.set_linear_dtype("fp8");
                            j.set_cluster("dgx-a100");
                          }),
              AllOf(HasSubstr("has no matmuls in FP8"), HasSubstr("use --linear-dtype bf16")));
  EXPECT_THAT(error_after(training(),
                          [](Job& j) {
                            j.set_linear_dtype("fp8");
                            j.set_dtype(proto::f32);
                          }),
              HasSubstr("use --dtype bf16"));
}

// Never the time of 16 bits under the name of 8.
TEST(PlanRequest, AttentionIsInTheDtypeUnlessItsKernelWasMeasuredInFp8) {
  Job prefill = serving(Job::prefill);
  prefill.set_attention_dtype("fp8");
  EXPECT_TRUE(sim::fp8_attention(make_plan_question(prefill)));
  prefill.set_attention_dtype("bf16");
  EXPECT_FALSE(sim::fp8_attention(make_plan_question(prefill)));
  const auto refused = [&](auto&& change) {
    return error_after(prefill, [&](Job& job) {
      job.set_attention_dtype("fp8");
      change(job);
    });
  };
  EXPECT_THAT(refused([](Job& job) { job.set_attention_dtype("f16"); }),
              AllOf(HasSubstr("--attention-dtype f16 is unknown"), HasSubstr("of --dtype, bf16, or fp8")));
  EXPECT_THAT(refused([](Job& job) { job.set_dtype(proto::f32); }), HasSubstr("use --dtype bf16"));
  EXPECT_THAT(refused([](Job& job) { job.set_cluster("dgx-a100"); }),
              AllOf(HasSubstr("--attention-dtype fp8: dgx-a100"), HasSubstr("no rate of attention in 8 bits"),
                    HasSubstr("use 16 bits")));
  EXPECT_THAT(refused([](Job& job) { job.set_kernels("cudnn"); }),
              AllOf(HasSubstr("no rate of cudnn"), HasSubstr("it has them of trtllm, fa3")));
  EXPECT_THAT(error_after(training(), [](Job& job) { job.set_attention_dtype("fp8"); }),
              AllOf(HasSubstr("with --phase training: no backward attention was measured in 8 bits"),
                    HasSubstr("--phase prefill")));
}

// A framework that is named, and one that the software's profile names, bound the search; what they run of
// the workload instead is planned.
TEST(PlanRequest, FrameworksBoundTheQuestion) {
  Job job = training();
  const auto frameworks = [&](std::optional<sim::Framework> emitted = std::nullopt) {
    return make_plan_question(job, emitted).frameworks;
  };
  EXPECT_TRUE(frameworks().empty());  // cprun's own plans say everything
  EXPECT_EQ(frameworks(sim::Framework::deepspeed), std::vector{sim::Framework::deepspeed});
  job.set_software("torchtitan");
  EXPECT_EQ(frameworks(), std::vector{sim::Framework::torchtitan});
  EXPECT_EQ(frameworks(sim::Framework::torchtitan), std::vector{sim::Framework::torchtitan});
  EXPECT_EQ(frameworks(sim::Framework::megatron),
            (std::vector{sim::Framework::torchtitan, sim::Framework::megatron}));
  job.set_software("usp");
  EXPECT_TRUE(frameworks().empty());
  job.set_optimizer("adamw_16");
  const sim::PlanQuestion question = make_plan_question(job, sim::Framework::torchtitan);
  EXPECT_EQ(question.workload.optimizer.state_dtype, DType::f32);
  EXPECT_THAT(question.unsaid, ::testing::ElementsAre("states in bf16: they are in f32"));
  EXPECT_THAT(question.assumptions, Contains("of torchtitan, states in bf16: they are in f32"));
  EXPECT_THAT(message_of([&] { make_plan_question(job, sim::Framework::vllm); }),
              HasSubstr("does not train"));
}

TEST(PlanRequest, BadInputNamesTheFlagAndWhatWorks) {
  const auto error = [](const auto& change) { return error_after(training(), change); };
  EXPECT_THAT(error([](Job& job) { job.clear_model(); }), HasSubstr("--model is missing; add, for example,"));
  EXPECT_THAT(error([](Job& job) { job.set_model("llama-3.1-9b"); }),
              AllOf(HasSubstr("--model llama-3.1-9b"), HasSubstr("llama-3.1-8b")));
  EXPECT_THAT(error([](Job& job) { job.set_cluster("dgx-h10"); }),
              AllOf(HasSubstr("--cluster dgx-h10"), HasSubstr("dgx-h100")));
  EXPECT_THAT(error([](Job& job) { job.set_software("megatrn"); }),
              AllOf(HasSubstr("--software megatrn"), HasSubstr("megatron")));
  EXPECT_EQ(error([](Job& job) { job.clear_seq_len(); }),
            "--seq-len is missing; add, for example, --seq-len 128K");
  EXPECT_THAT(error([](Job& job) { job.clear_global_batch(); }),
              HasSubstr("--global-batch is missing; add, for example, --global-batch 16"));
  EXPECT_EQ(
      error([](Job& job) {
        job.clear_global_batch();
        job.set_global_batch_tokens(1000000);
      }),
      "--global-batch-tokens 1000000 tokens are no whole number of sequences of 131072 tokens; use 917504 or "
      "1048576");
  EXPECT_THAT(error([](Job& job) { job.set_global_batch_tokens(131072); }), HasSubstr("disagree"));
  EXPECT_THAT(error([](Job& job) { job.set_gpus(24); }),
              AllOf(HasSubstr("--gpus 24 and --nodes 2 disagree"), HasSubstr("has 8 GPUs")));
  EXPECT_THAT(error([](Job& job) {
                job.clear_nodes();
                job.set_gpus(12);
              }),
              HasSubstr("use --gpus 8 or 16"));
  EXPECT_THAT(error([](Job& job) {
                job.clear_nodes();
                job.set_gpus(3);
              }),
              HasSubstr("use --gpus 2 or 8"));
  EXPECT_THAT(error([](Job& job) { job.set_max_memory(96); }), HasSubstr("78 GiB that can be used"));
  EXPECT_THAT(error([](Job& job) { job.set_optimizer("adam"); }),
              AllOf(HasSubstr("--optimizer adam:"), HasSubstr("adamw")));
  EXPECT_THAT(error([](Job& job) { job.set_recompute("some"); }), HasSubstr("--recompute some"));
  EXPECT_THAT(error([](Job& job) { job.set_baseline("tp=8,cp=3"); }),
              AllOf(HasSubstr("--baseline tp=8,cp=3"), HasSubstr("takes 24 GPUs")));
  EXPECT_THAT(error([](Job& job) { job.set_baseline("tp=8,dp_shard=4"); }), HasSubstr("takes 32 GPUs"));
  EXPECT_THAT(error([](Job& job) { job.set_expert_imbalance(1.2); }), HasSubstr("has no experts"));
}

TEST(PlanRequest, BadFixedPartsNameTheirKeys) {
  const auto error = [](const std::string& text) {
    return error_after(training(), [&](Job& job) { job.add_fix(text); });
  };
  EXPECT_THAT(error("tpp=8"), AllOf(HasSubstr("--fix tpp=8"), HasSubstr("did you mean tp=?")));
  EXPECT_THAT(error("8"), HasSubstr("is no KEY=VALUE of a layout; its keys are tp, cp, dp_shard"));
  EXPECT_THAT(error("tp=0"), HasSubstr("use 1 to"));
  EXPECT_THAT(error("tp=eight"), HasSubstr("tp"));
  EXPECT_THAT(error("tp=2,tp=4"), HasSubstr("tp comes twice"));
  EXPECT_THAT(error("strategy=rong"), HasSubstr("ring"));
  EXPECT_THAT(error("sharding=all"), HasSubstr("use dp_shard or dp_shard_cp"));
  EXPECT_THAT(error_after(training(),
                          [](Job& job) {
                            job.set_micro_batch(2);
                            job.add_fix("micro_batch=4");
                          }),
              HasSubstr("--micro-batch 2 and --fix micro_batch=4 disagree"));
  EXPECT_THAT(error_after(training(),
                          [](Job& job) {
                            job.set_recompute("full");
                            job.add_fix("recompute=none");
                          }),
              HasSubstr("--recompute full and --fix recompute=none disagree"));
}

TEST(PlanRequest, FlagsOfAnotherPhaseAreRefused) {
  const auto error = [](Job::Phase phase, const auto& change) {
    Job job = phase == Job::training ? training() : serving(phase);
    change(job);
    return message_of([&] { make_plan_question(job); });
  };
  EXPECT_THAT(error(Job::training, [](Job& job) { job.set_concurrent(4); }),
              HasSubstr("--concurrent does not apply to training"));
  EXPECT_THAT(error(Job::training, [](Job& job) { job.set_ttft_max(4); }),
              HasSubstr("--ttft-max does not apply to training"));
  EXPECT_THAT(error(Job::prefill, [](Job& job) { job.set_global_batch(4); }),
              HasSubstr("--global-batch does not apply to prefill; leave it out and give --concurrent"));
  EXPECT_THAT(error(Job::prefill, [](Job& job) { job.set_new_tokens(4); }), HasSubstr("--new-tokens"));
  EXPECT_THAT(error(Job::decode, [](Job& job) { job.set_optimizer("sgd"); }), HasSubstr("--optimizer"));
  EXPECT_THAT(error(Job::decode, [](Job& job) { job.clear_seq_len(); }), HasSubstr("--cached is missing"));
  EXPECT_THAT(error(Job::decode,
                    [](Job& job) {
                      job.set_cached(5);
                      job.set_new_tokens(5);
                    }),
              HasSubstr("seq_len=131072 must be cached + new_tokens=5+5"));
}

TEST(PlanRequest, TokensHaveShortForms) {
  EXPECT_EQ(parse_tokens("--seq-len", "131072"), 131072);
  EXPECT_EQ(parse_tokens("--seq-len", "128K"), 131072);
  EXPECT_EQ(parse_tokens("--seq-len", "128Ki"), 131072);
  EXPECT_EQ(parse_tokens("--seq-len", "1M"), 1 << 20);
  EXPECT_THAT(message_of([] { parse_tokens("--seq-len", "0"); }), HasSubstr("--seq-len 0 is out of range"));
  EXPECT_THAT(message_of([] { parse_tokens("--seq-len", "K"); }), HasSubstr("--seq-len K"));
  EXPECT_THAT(message_of([] { parse_tokens("--seq-len", "1.5M"); }), HasSubstr("--seq-len 1.5M"));
}

TEST(PlanRequest, TheCommandSaysTheSame) {
  Job job = training();
  job.add_fix("tp=8");
  job.set_model("it's here/config.json");
  job.set_phase(Job::training);
  job.set_max_memory(40.5);
  job.set_dtype(proto::bf16);
  EXPECT_EQ(plan_command(job),
            "cpsim plan --model 'it'\\''s here/config.json' --nodes 2 --phase training --seq-len 131072 "
            "--global-batch 16 --dtype bf16 --fix tp=8 --max-memory 40.5");
}

}  // namespace
}  // namespace cp::cli
