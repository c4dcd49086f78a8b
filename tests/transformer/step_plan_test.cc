// Plans of whole models: every part of a step, on all ranks together, holds what the checker proves.
#include "shared/transformer/step_plan.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/plan/temporaries.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/sizes.h"
#include "tests/support/any_case.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

// ---- the checker ----

void check_all_parts(const StepRequest& request) {
  for (const StepPart part : parts_of(request)) {
    SCOPED_TRACE(name(part));
    try {
      check(plans_of_all_ranks(request, part));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(StepPlans, AreProvedByTheChecker) {
  for (const char* layout : {"tp=1",
                             "tp=2",
                             "tp=4",
                             "dp_shard=2",
                             "dp_replicate=2,dp_shard=2",
                             "cp=2,strategy=ring",
                             "tp=2,cp=2,dp_shard=2,strategy=ring,balance=head_tail",
                             "cp=2,sharding=dp_shard,dp_shard=2",
                             "cp=3,strategy=pass_q,balance=striped:1",
                             "cp=4,strategy=ulysses",
                             "cp=4,strategy=ulysses_ring,balance=head_tail",
                             "cp=2,strategy=all_gather,balance=head_tail_exchange,micro_batch=2",
                             "recompute=full",
                             "recompute=selective,tp=2",
                             "recompute=every:2,tp=2,dp_shard=2",
                             "loss_chunks=5,tp=2",
                             "pp=2",
                             "pp=3,tp=2,recompute=full",
                             "pp=2,dp_shard=2,cp=2,dp_replicate=2",
                             "micro_batch=2,tp=2,cp=2,recompute=selective",
                             "dp_shard=2,zero=1",
                             "dp_shard=2,tp=2,zero=2,recompute=every:2",
                             "tp=2,sequence_parallel=no",
                             "tp=2,pp=2,dp_shard=2,sequence_parallel=no,recompute=full",
                             "mlp_chunks=3,tp=2",
                             "mlp_chunks=5,dp_shard=2,recompute=full",
                             "activations=host",
                             "activations=host,recompute=every:2,tp=2",
                             "activations=host,recompute=full,pp=2,cp=2"}) {
    SCOPED_TRACE(layout);
    check_all_parts(small_request(layout));
  }
}

TEST(StepPlans, OfOtherModelsAreProvedToo) {
  for (const char* layout :
       {"tp=2,cp=2,strategy=ring", "pp=2,tp=4,dp_shard=2", "tp=2,dp_shard=4,recompute=selective"}) {
    SCOPED_TRACE(layout);
    StepRequest request = small_request(layout);
    request.model.tied_embeddings = true;
    check_all_parts(request);
    request.model.qk_norm = true, request.model.qkv_bias = true;
    check_all_parts(request);
    request.workload.gradient_dtype = DType::bf16;
    check_all_parts(request);
    request.workload.dtype = DType::f32, request.workload.gradient_dtype = DType::f32;
    request.workload.optimizer = parse_optimizer("adamw:offload");
    check_all_parts(request);
  }
  for (const char* layout :
       {"tp=2", "ep=2,dp_shard=2,tp=2", "ep=4,dp_shard=2,cp=2,strategy=ring,recompute=full",
        "ep=2,dp_shard=4,pp=3", "ep=2,dp_shard=4,cp=2,sharding=dp_shard,recompute=selective",
        "tp=2,dp_shard=2,order=tp-dp-cp-pp,cp=2,ep=2"}) {
    SCOPED_TRACE(layout);
    StepRequest request = small_request(layout);
    request.model.experts = Experts{4, 2, 24};
    request.workload.expert_imbalance = 1.3;
    check_all_parts(request);
  }
}

TEST(StepPlans, OfLatentAttentionAreProvedToo) {
  for (const char* layout :
       {"tp=2,cp=2,strategy=ring", "pp=2,tp=4,dp_shard=2", "tp=2,dp_shard=4,recompute=selective",
        "tp=2,sequence_parallel=no,cp=3,strategy=need_only", "cp=4,strategy=ulysses,recompute=full",
        "cp=2,strategy=all_gather,activations=host,recompute=every:2"}) {
    for (const std::int64_t q_rank : {0, 20}) {
      SCOPED_TRACE(str(layout, ", q_rank ", q_rank));
      StepRequest request = small_request(layout);
      if (refuse(request.model, request.workload, request.layout)) continue;  // of fewer kv heads
      request.model.kv_heads = 4, request.model.latent = Latent{q_rank, 12, 2, 6};
      check_all_parts(request);
    }
  }
}

TEST(StepPlans, OfServingAreProvedToo) {
  for (const char* layout :
       {"tp=1", "tp=2,micro_batch=3", "cp=2,strategy=ring", "cp=3,tp=2,strategy=pass_q,micro_batch=2",
        "pp=2,tp=2", "cp=2,strategy=all_gather,dp_replicate=2"}) {
    SCOPED_TRACE(layout);
    StepRequest request = small_request(layout);
    request.workload.phase = Phase::prefill;
    check_all_parts(request);
    request.workload.cached = 11;
    check_all_parts(request);
    request.workload.phase = Phase::decode;
    request.workload.cached = 23, request.workload.new_tokens = 1;
    check_all_parts(request);
  }
}

RC_GTEST_PROP(StepPlans, OfAnyLayoutAreProvedByTheChecker, ()) {
  StepRequest request = any_request();
  Workload& workload = request.workload;
  if (workload.phase == Phase::training && pick("documents", rc::gen::arbitrary<bool>())) {
    const auto cuts = pick("cuts", rc::gen::container<std::vector<std::int64_t>>(
                                       static_cast<std::size_t>(workload.global_batch),
                                       rc::gen::inRange<std::int64_t>(0, workload.seq_len)));
    for (const std::int64_t cut : cuts) {
      std::vector<std::int64_t>& ends = workload.cu_seqlens_of_sequence.emplace_back(1, 0);
      if (cut > 0) ends.push_back(cut);
      ends.push_back(workload.seq_len);
    }
    RC_PRE(!refuse(request.model, workload, request.layout));
  }
  RC_LOG() << to_string(request.layout) << " " << name(request.workload.phase) << " of "
           << request.workload.seq_len << (request.model.experts ? ", experts" : "") << ", "
           << request.model.layers << " layers, kv heads " << request.model.kv_heads << "\n";
  for (const StepPart part : parts_of(request)) {
    try {
      check(plans_of_all_ranks(request, part));
    } catch (const Error& error) {
      RC_FAIL(str(name(part), ": ", error.what()));
    }
  }
}

// ---- which layer ----

// What a Repeat's views of a buffer name, piece by piece, in the order of the iterations.
std::vector<std::int64_t> pieces(const Plan& plan, std::string_view buffer, std::string_view label,
                                 std::int64_t piece) {
  std::vector<std::int64_t> found;
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step->label != label) continue;
    for (const Access& access : accesses(ref.step->work)) {
      if (plan.buffers[static_cast<std::size_t>(access.view->buffer)].name != buffer) continue;
      for (std::int64_t i = 0; i < ref.count; ++i) found.push_back(offset_at(*access.view, i) / piece);
    }
  }
  return found;
}

// Micro-batches with equal documents on all replicas have equal plans; one document more on another replica
// is in the digest of inputs, and changes nothing else.
TEST(StepPlans, OfAMicroBatchHaveItsDocuments) {
  StepRequest request{small_model(), {}, parse_parallel_layout("dp_shard=2,cp=2,strategy=ring")};
  Workload& workload = request.workload;
  workload.seq_len = 16, workload.global_batch = 6;
  const std::vector<std::int64_t> one{0, 16}, two{0, 4, 16};
  workload.cu_seqlens_of_sequence = {one, two, one, two, one, two};
  const auto plan = [&](std::int64_t micro_batch, Rank rank = 0) {
    return step_plan(request, StepPart::micro_batch, 0, rank, nullptr, micro_batch);
  };
  EXPECT_EQ(first_sequence(request, 0, 2), 2);
  EXPECT_EQ(first_sequence(request, 2, 2), 5);
  EXPECT_EQ(documents_of_micro_batch(request, 0), (std::vector{one, two}));
  EXPECT_EQ(documents_of_micro_batch(request, 1), (std::vector{two, one}));
  EXPECT_EQ(digest(plan(0)), digest(plan(2)));
  EXPECT_NE(digest(plan(0)), digest(plan(1)));
  EXPECT_EQ(plan(0).inputs, plan(0, 2).inputs) << "of replicas that have other documents";
  Plan alike = plan(0);
  workload.cu_seqlens_of_sequence[3] = {0, 4, 5, 16};
  EXPECT_NE(alike.inputs, plan(0).inputs);
  alike.inputs = plan(0).inputs;
  EXPECT_EQ(alike, plan(0));
  EXPECT_EQ(digest(step_plan(request, StepPart::update, 0, 0, nullptr, 1)),
            digest(step_plan(request, StepPart::update, 0, 0)));
}

TEST(StepPlans, TheBackwardPassMeetsTheLayersFromTheLastOne) {
  using ::testing::ElementsAre;
  StepRequest request = small_request("dp_shard=2,recompute=every:2");
  request.model.layers = 5;
  const Plan plan = step_plan(request, StepPart::micro_batch, 0, 0);
  const LocalSizes sizes = local_sizes(request.model, request.workload, request.layout);
  const std::int64_t shard = sizes.layer[LayerParts{}] / 2, x = 24 * 32, gate_up = 24 * 96;
  // Gathered forward, two layers of a body in turn, the last one alone, and backward. What each body's steps
  // are, its iterations do.
  EXPECT_THAT(pieces(plan, "parameters/layers", "cast shard", shard),
              ElementsAre(0, 2, 1, 3, 4, 4, 3, 1, 2, 0));
  EXPECT_THAT(pieces(plan, "gradients/layers", "add gradients", shard), ElementsAre(4, 3, 1, 2, 0));
  EXPECT_THAT(pieces(plan, "activations/x", "norm backward", x), ElementsAre(4, 3, 1, 2, 0));
  // Layers 0, 2 and 4 keep theirs.
  EXPECT_THAT(pieces(plan, "activations/gate_up", "gate, up", gate_up), ElementsAre(0, 1, 2));
  EXPECT_THAT(pieces(plan, "activations/gate_up", "activation backward", gate_up), ElementsAre(2, 1, 0));
  // Neighbours in time never share a slot.
  EXPECT_THAT(pieces(plan, "unsharded/layers", "cast shard", sizes.layer[LayerParts{}]),
              ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 0, 0));
}

// ---- stages ----

// Where stages of one rank follow each other, what one sends is what the next one receives: the checker sees
// one stage of a rank.
TEST(StepPlans, NeighbouringStagesExchangeTheSameRows) {
  StepRequest request = small_request("pp=2,virtual_stages=2,tp=2");
  request.model.layers = 6, request.workload.global_batch = 2;
  const auto exchange = [&](StepPart part, int stage) {
    const Plan plan = step_plan(request, part, stage, stage % 2 * 2);
    const std::vector<StepRef> steps = steps_of(plan);
    EXPECT_EQ(steps.size(), 1U);
    const Exchange& made = std::get<Exchange>(std::get<Collective>(steps.at(0).step->work));
    return std::pair(plan.groups[static_cast<std::size_t>(made.group)], made);
  };
  for (int stage = 0; stage < 3; ++stage) {
    for (const bool forward : {true, false}) {
      const auto [from_group, from] =
          exchange(forward ? StepPart::send_forward : StepPart::send_backward, forward ? stage : stage + 1);
      const auto [to_group, to] =
          exchange(forward ? StepPart::recv_forward : StepPart::recv_backward, forward ? stage + 1 : stage);
      EXPECT_EQ(from_group, to_group);
      EXPECT_EQ(from.counts, to.counts);
      ASSERT_EQ(from.sends.size(), 1U);
      ASSERT_EQ(to.recvs.size(), 1U);
      EXPECT_EQ(from.sends[0].view.numel(), to.recvs[0].view.numel());
      EXPECT_EQ(from.sends[0].peer, forward ? 1 : 0);
    }
  }
}

// ---- asking ----

RC_GTEST_PROP(StepPlans, ACacheChangesNothing, ()) {
  static MixerPlanCache cache(8);
  const StepRequest request = any_request();
  const StepPart part = parts_of(request)[0];
  const Rank rank = pick("rank", rc::gen::inRange(0, request.layout.world()));
  const int stage = RankGroups(request.layout, rank).pp();
  RC_ASSERT(step_plan(request, part, stage, rank, &cache) == step_plan(request, part, stage, rank));
}

RC_GTEST_PROP(StepPlans, PlacedLaterTheyAreTheSame, ()) {
  static MixerPlanCache cache(8);
  const StepRequest request = any_request();
  const std::vector<StepPart> parts = parts_of(request);
  const StepPart part = pick("part", rc::gen::elementOf(parts));
  const Rank rank = pick("rank", rc::gen::inRange(0, request.layout.world()));
  const int stage = RankGroups(request.layout, rank).pp();
  RC_ASSERT(placed(unplaced_step_plan(request, part, stage, rank, cache)) ==
            step_plan(request, part, stage, rank));
}

// "stream: operation label" of each step, one a line.
std::string story(const Plan& plan) {
  std::string lines;
  for (const StepRef& ref : steps_of(plan)) {
    lines +=
        str(plan.streams[static_cast<std::size_t>(ref.step->stream)], ": ", operation_name(ref.step->work),
            " \"", ref.step->label, "\"", ref.count > 1 ? str(" x", ref.count) : "", "\n");
  }
  return lines;
}

TEST(StepPlans, ReadLikeAModel) {
  const StepRequest request = small_request("tp=2,dp_shard=2,recompute=selective");
  EXPECT_EQ(story(step_plan(request, StepPart::micro_batch, 0, 0)), R"(fsdp: cast "cast shard"
fsdp: all_gather "unshard"
compute: embed "embed"
tp: reduce_scatter "scatter embedding"
fsdp: cast "cast shard" x3
fsdp: all_gather "unshard" x3
compute: rms_norm "attention norm" x3
tp: all_gather "gather rows" x3
compute: matmul "qkv" x3
compute: rotary "rotary" x3
compute: attention_forward "attention" x3
compute: matmul "out projection" x3
tp: reduce_scatter "scatter attention" x3
compute: accumulate "residual" x3
compute: rms_norm "mlp norm" x3
tp: all_gather "gather rows" x3
compute: matmul "gate, up" x3
compute: gated_activation "activation" x3
compute: matmul "down" x3
tp: reduce_scatter "scatter mlp" x3
compute: accumulate "residual" x3
fsdp: cast "cast shard"
fsdp: all_gather "unshard"
compute: rms_norm "final norm"
tp: all_gather "gather rows"
compute: matmul "head"
compute: cross_entropy "maxima"
tp: all_reduce "maxima of all"
compute: cross_entropy "sums"
tp: all_reduce "sums of all"
compute: cross_entropy_backward "loss backward"
compute: matmul "head, dgrad"
compute: matmul "head, wgrad"
tp: reduce_scatter "scatter d head"
compute: rms_norm_backward "final norm backward"
tp: all_reduce "add up d final norm"
fsdp_reduce: cast "cast gradients"
fsdp_reduce: reduce_scatter "reduce gradients"
fsdp_reduce: accumulate "add gradients"
fsdp: cast "cast shard" x3
fsdp: all_gather "unshard" x3
tp: all_gather "gather d mlp" x3
compute: rms_norm "norm again" x3
tp: all_gather "gather rows again" x3
compute: gated_activation "activation again" x3
compute: matmul "down, dgrad" x3
compute: matmul "down, wgrad" x3
compute: gated_activation_backward "activation backward" x3
compute: matmul "gate, up, dgrad" x3
compute: matmul "gate, up, wgrad" x3
tp: reduce_scatter "scatter d mlp" x3
compute: rms_norm_backward "norm backward" x3
tp: all_gather "gather d attention" x3
compute: matmul "out projection, dgrad" x3
compute: matmul "out projection, wgrad" x3
compute: attention_delta "delta" x3
compute: attention_backward "attention backward" x3
compute: rotary_backward "rotary backward" x3
compute: rms_norm "norm again" x3
tp: all_gather "gather rows again" x3
compute: matmul "qkv, dgrad" x3
compute: matmul "qkv, wgrad" x3
tp: reduce_scatter "scatter d attention" x3
compute: rms_norm_backward "norm backward" x3
tp: all_reduce "add up d norms" x3
fsdp_reduce: cast "cast gradients" x3
fsdp_reduce: reduce_scatter "reduce gradients" x3
fsdp_reduce: accumulate "add gradients" x3
compute: fill "no d embedding yet"
tp: all_gather "gather d embedding"
compute: embed_backward "embed backward"
fsdp_reduce: cast "cast gradients"
fsdp_reduce: reduce_scatter "reduce gradients"
fsdp_reduce: accumulate "add gradients"
)");
}

// Latent rows are made of a rank's own rows and then gathered: fewer bytes than the layer's rows have.
TEST(StepPlans, OfLatentAttentionGatherLatentRows) {
  StepRequest request = small_request("tp=2");
  request.model.kv_heads = 4, request.model.latent = Latent{20, 12, 2, 6};
  const std::string all = story(step_plan(request, StepPart::micro_batch, 0, 0));
  EXPECT_THAT(all, ::testing::HasSubstr(R"(compute: rms_norm "attention norm" x3
compute: matmul "q down" x3
compute: rms_norm "q latent norm" x3
compute: matmul "kv down" x3
compute: rms_norm "kv latent norm" x3
tp: all_gather "gather q latents" x3
tp: all_gather "gather kv latents" x3
compute: matmul "q up" x3
compute: matmul "kv up" x3
compute: rotary "rotary" x3
compute: attention_forward "attention" x3
compute: matmul "out projection" x3
tp: reduce_scatter "scatter attention" x3
)"));
  EXPECT_THAT(all, ::testing::HasSubstr(R"(compute: attention_backward "attention backward" x3
tp: all_gather "gather q latents" x3
tp: all_gather "gather kv latents" x3
compute: rotary_backward "rotary backward" x3
compute: matmul "q up, dgrad" x3
compute: matmul "q up, wgrad" x3
tp: reduce_scatter "scatter d q latents" x3
compute: rms_norm_backward "q latent norm backward" x3
compute: matmul "q down, dgrad" x3
compute: matmul "q down, wgrad" x3
compute: matmul "kv up, dgrad" x3
compute: matmul "kv up, wgrad" x3
tp: reduce_scatter "scatter d kv latents" x3
compute: rms_norm_backward "kv latent norm backward" x3
compute: matmul "kv down, dgrad" x3
compute: matmul "kv down, wgrad" x3
compute: rms_norm_backward "norm backward" x3
)"));
}

// What all tp ranks hold alike is added up by one AllReduce for all layers, but for large pieces, which would
// be packed into as much memory again.
TEST(StepPlans, LargeReplicatedWeightsAreNotPacked) {
  StepRequest request = small_request("tp=2");
  request.model.kv_heads = 4, request.model.latent = Latent{20, 12, 2, 6};
  const auto update = [&] { return story(step_plan(request, StepPart::update, 0, 0)); };
  EXPECT_THAT(update(), ::testing::HasSubstr("\"pack d replicated weights\"\ntp: all_reduce \"add up d "
                                             "replicated weights\"\ncompute: copy \"unpack d"));
  request.model.hidden = 1024, request.model.latent->q_rank = 1024;
  const std::string once = "tp: all_reduce \"add up d replicated weights\"\n";
  EXPECT_THAT(update(), ::testing::HasSubstr(once + once + once));
  EXPECT_THAT(update(), ::testing::Not(::testing::HasSubstr("pack d replicated")));
  check_all_parts(request);
}

TEST(StepPlans, AreRefusedWithReasons) {
  const auto message = [](const StepRequest& request, StepPart part, int stage, Rank rank) -> std::string {
    try {
      step_plan(request, part, stage, rank);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "no error";
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(small_request("tp=3"), StepPart::micro_batch, 0, 0),
              HasSubstr("num_attention_heads=4"));
  EXPECT_THAT(message(small_request("pp=2"), StepPart::micro_batch, 0, 0),
              HasSubstr("use forward and backward"));
  EXPECT_THAT(message(small_request("tp=2"), StepPart::forward, 0, 0), HasSubstr("use micro_batch"));
  EXPECT_THAT(message(small_request("tp=2"), StepPart::send_forward, 0, 0), HasSubstr("use micro_batch"));
  EXPECT_THAT(message(small_request("pp=2"), StepPart::recv_forward, 0, 0),
              HasSubstr("stage 0 of 2 has no part recv_forward; the first stage has nobody before it"));
  EXPECT_THAT(message(small_request("pp=2"), StepPart::recv_backward, 1, 1),
              HasSubstr("stage 1 of 2 has no part recv_backward; the last stage has nobody behind it"));
  EXPECT_THAT(message(small_request("tp=2"), StepPart::prefill, 0, 0), HasSubstr("in the phase training"));
  EXPECT_THAT(message(small_request("pp=2"), StepPart::forward, 2, 0),
              HasSubstr("stage 2 is not one of 2 stages"));
  EXPECT_THAT(message(small_request("pp=2"), StepPart::forward, 1, 0),
              HasSubstr("rank 0 does not hold stage 1"));
  EXPECT_THAT(message(small_request("tp=2"), StepPart::micro_batch, 0, 2),
              HasSubstr("rank 2 is not in a layout of 2 ranks"));
}

}  // namespace
}  // namespace cp::testing
