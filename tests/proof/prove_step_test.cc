#include "sim/proof/step/prove_step.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "sim/proof/step/scale_down.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kOddLength = 29;

// Two kv heads, so that tp=4 has them twice.
Transformer dense_model() {
  Transformer model;
  model.name = "small", model.hidden = 32, model.layers = 4, model.q_heads = 4, model.kv_heads = 2;
  model.head_dim = 8, model.intermediate = 44, model.vocab = 83;
  return model;
}

StepRequest request_of(const Transformer& model, const std::string& layout) {
  return proof_request(model, parse_parallel_layout(layout), kOddLength);
}

TEST(ProveStep, HoldsForLayoutsOfADenseModel) {
  for (const char* layout :
       {"tp=1", "dp_replicate=2", "dp_shard=2", "dp_shard=3,zero=2", "dp_shard=2,zero=1", "tp=2", "tp=4",
        "cp=2,strategy=ring,balance=head_tail", "cp=2,strategy=ulysses", "cp=3,strategy=all_gather",
        "tp=2,cp=2,strategy=ring", "pp=2", "pp=2,dp_shard=2", "tp=2,dp_shard=2,recompute=full",
        "cp=2,dp_shard=2,strategy=ring,recompute=selective,loss_chunks=3", "tp=2,pp=2,micro_batch=2"}) {
    const StepProof proof = prove_step(request_of(dense_model(), layout));
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    EXPECT_GT(proof.labelled, 0);
  }
}

// With several stages on a rank: the norm is over all of them, and a tied table is on the first rank and the
// last.
TEST(ProveStep, HoldsForVirtualStages) {
  Transformer tied = dense_model();
  tied.tied_embeddings = true;
  for (const Transformer& model : {dense_model(), tied}) {
    for (const char* layout : {"pp=2,virtual_stages=2", "pp=2,virtual_stages=2,dp_shard=2,recompute=full",
                               "tp=2,pp=2,virtual_stages=2,dp_replicate=2"}) {
      StepRequest request = request_of(model, layout);
      for (const char* optimizer : {"adamw", "adamw:offload"}) {
        request.workload.optimizer = parse_optimizer(optimizer);
        const StepProof proof = prove_step(request);
        EXPECT_TRUE(proof.holds()) << layout << " " << optimizer << ": " << proof.finding();
      }
    }
  }
}

TEST(ProveStep, HoldsForModelsThatDiffer) {
  Transformer tied = dense_model();
  tied.tied_embeddings = true, tied.qkv_bias = true;
  Transformer normed = dense_model();
  normed.qk_norm = true, normed.norms_behind = true, normed.gated_mlp = false;
  Transformer windows = dense_model();
  const LayerKind full, window{7, {}, false, Mixer::attention, true};
  set_layers(windows, {window, full, window, full});
  for (const Transformer& model : {tied, normed, windows}) {
    for (const char* layout : {"tp=1", "tp=2,dp_shard=2", "cp=2,strategy=ring,balance=head_tail", "pp=2"}) {
      const StepProof proof = prove_step(request_of(model, layout));
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
}

// ---- planted bugs ----

// Calls change(step) for each step with this label, of all plans; there must be one.
template <class Change>
StepPlans with(const StepRequest& request, const std::string& label, const Change& change) {
  return [&request, label, change](StepPart part, int stage) {
    std::vector<Plan> plans = step_plans(request, part, stage);
    for (Plan& plan : plans) {
      for (Segment& segment : plan.segments) {
        if (auto* alone = std::get_if<Step>(&segment)) {
          if (alone->label == label) change(*alone);
        } else {
          for (Step& step : std::get<Repeat>(segment).steps) {
            if (step.label == label) change(step);
          }
        }
      }
    }
    return plans;
  };
}

// In place of what adds up over ranks: nothing.
void leave_out(Step& step) {
  const auto& reduce = std::get<AllReduce>(std::get<Collective>(step.work));
  step.work = Kernel{Scale{reduce.out, 1}};
}

TEST(ProveStep, FindsANormThatIsLocal) {
  const StepRequest request = request_of(dense_model(), "dp_shard=2");
  const StepProof proof = prove_step(request, with(request, "norm over norm_shards", leave_out), {});
  EXPECT_THAT(proof.finding(), HasSubstr("first moment of model.embed_tokens.weight"));
}

TEST(ProveStep, FindsANormOfTheLastStageAlone) {
  const StepRequest request = request_of(dense_model(), "pp=2,virtual_stages=2");
  const auto overwrite = [](Step& step) {
    const Accumulate sum = std::get<Accumulate>(std::get<Kernel>(step.work));
    step.work = Kernel{Copy{sum.in, sum.out}};
  };
  const StepProof proof = prove_step(request, with(request, "norm of the stages before", overwrite), {});
  EXPECT_THAT(proof.finding(), HasSubstr("as if clipped by another norm"));
}

TEST(ProveStep, FindsGradientsOfReplicatedHeadsThatAreNotAddedUp) {
  const StepRequest request = request_of(dense_model(), "tp=4");
  const StepProof proof = prove_step(request, with(request, "add up d k, v weights", leave_out), {});
  EXPECT_THAT(proof.finding(), HasSubstr("first moment of model.layers.0.self_attn.k_proj.weight"));
}

TEST(ProveStep, FindsRotationByLocalPosition) {
  const StepRequest request = request_of(dense_model(), "cp=2,strategy=ring");
  const auto by_local_index = [](Step& step) {
    auto& rotary = std::get<RotaryRule>(std::get<RowKernel>(std::get<Kernel>(step.work)).rule);
    rotary.positions = {cp::Run{0, size(rotary.positions), 0, 1}};
  };
  const StepProof proof = prove_step(request, with(request, "rotary", by_local_index), {});
  EXPECT_FALSE(proof.holds());
}

TEST(ProveStep, RefusesWhatIsNoTraining) {
  StepRequest request = request_of(dense_model(), "tp=1");
  request.workload.phase = Phase::prefill;
  EXPECT_THAT(testing::message_of([&] { prove_step(request); }), HasSubstr("phase prefill has no loss"));
}

}  // namespace
}  // namespace cp::sim
