#include "sim/proof/step/prove_step.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/proof/small_steps.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using testing::dense_model;
using ::testing::HasSubstr;
using testing::request_of;

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

// Parameters that are kept for the backward pass, whole or over fewer ranks, and gradients that are reduced
// once a step: with padding, weights that all tp ranks hold, replicas, experts that other ranks share, and
// optimizers in host memory.
TEST(ProveStep, HoldsWhateverIsKept) {
  const auto expect_proved = [](const Transformer& model, const char* layout, const char* optimizer) {
    StepRequest request = request_of(model, layout);
    request.workload.optimizer = parse_optimizer(optimizer);
    const StepProof proof = prove_step(request);
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
  };
  expect_proved(dense_model(), "dp_shard=3,reshard=no,sync=step", "adamw");
  expect_proved(dense_model(), "tp=2,dp_shard=2,sync=step", "adamw:offload");
  expect_proved(dense_model(), "dp_replicate=2,cp=2,dp_shard=2,strategy=ring,reshard=2", "adamw");
  expect_proved(testing::model_of_experts(), "ep=2,dp_shard=4,reshard=2,sync=step,prefetch=2", "adamw");
  expect_proved(dense_model(), "dp_shard=2,prefetch=0", "adamw");
}

// Layers that are gathered together, the last ones fewer, and tensors that stay whole beside others and
// alone: with padding, weights that all tp ranks hold, replicas, parts that are kept, and experts that other
// ranks share.
TEST(ProveStep, HoldsForBucketsAndSmallTensors) {
  const auto expect_proved = [](const Transformer& model, const char* layout, const char* optimizer,
                                DType gradient_dtype = DType::f32) {
    StepRequest request = request_of(model, layout);
    request.workload.optimizer = parse_optimizer(optimizer), request.workload.gradient_dtype = gradient_dtype;
    const StepProof proof = prove_step(request);
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
  };
  expect_proved(dense_model(), "dp_shard=3,bucket=3", "adamw");
  expect_proved(dense_model(), "tp=2,dp_shard=3,threshold=40,recompute=every:2", "adamw");
  expect_proved(dense_model(), "tp=2,dp_replicate=2,dp_shard=2,threshold=500,bucket=2,reshard=no", "adamw");
  expect_proved(dense_model(), "dp_shard=4,threshold=100000", "adamw:offload");
  expect_proved(dense_model(), "dp_shard=4,bucket=2,threshold=40,reshard=2,sync=step", "sgd_momentum");
  expect_proved(testing::model_of_experts(), "ep=2,dp_shard=4,bucket=2,threshold=300", "adamw:offload");
  // What products cannot add to themselves is cast and added, the small tensors of a piece apart.
  expect_proved(dense_model(), "dp_shard=4,bucket=3,threshold=40,sync=step", "adamw", DType::bf16);
  // The head's unit is its norm alone, which is small, and layers are sharded.
  Transformer tied = dense_model();
  tied.tied_embeddings = true;
  expect_proved(tied, "tp=2,dp_shard=2,threshold=50", "adamw");
}

// In the order of 1F1B and of its interleaved kind: slots are used again, or there are fewer micro-batches
// than stages.
TEST(ProveStep, HoldsForPipelinesOfAnyNumberOfMicroBatches) {
  for (const auto& [layout, micro_batches] :
       {std::pair{"pp=2", 1}, {"pp=2", 5}, {"pp=4", 2}, {"pp=4", 6}, {"pp=2,virtual_stages=2", 4}}) {
    StepRequest request = request_of(dense_model(), layout);
    request.workload.global_batch = micro_batches;
    const StepProof proof = prove_step(request);
    EXPECT_TRUE(proof.holds()) << layout << " with " << micro_batches << ": " << proof.finding();
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

// Experts are spread over the ranks that parameters are sharded over, or over others, and may have copies.
TEST(ProveStep, HoldsForExperts) {
  for (const char* layout :
       {"ep=2,dp_shard=2", "ep=2,cp=2,strategy=ring", "ep=2,cp=2,dp_shard=2,sharding=dp_shard",
        "ep=4,cp=2,dp_shard=2,dp_replicate=2", "ep=2,tp=2,dp_shard=2,zero=1"}) {
    const StepProof proof = prove_step(request_of(testing::model_of_experts(), layout));
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
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
  Transformer partly = dense_model(), without_positions = dense_model();
  partly.numerics.rotary_share = 0.5, without_positions.numerics.rotary_share = 0;
  for (const Transformer& model : {tied, normed, windows, partly, without_positions}) {
    for (const char* layout : {"tp=1", "tp=2,dp_shard=2", "cp=2,strategy=ring,balance=head_tail", "pp=2"}) {
      const StepProof proof = prove_step(request_of(model, layout));
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
}

// Each rank has the corrections of its stage's routers, whatever shards its parameters, keeps or computes
// again what they choose, and moves none of them.
TEST(ProveStep, HoldsForCorrectedScores) {
  Transformer predicting = testing::model_that_corrects_scores(), softmax = predicting;
  predicting.prediction_layers = 1;
  set_layers(predicting, {{{}, {}, true}, {}, {}, {}});
  softmax.numerics.router = {false, 1, 1, true, 1, 1};
  for (const Transformer& model : {predicting, softmax}) {
    for (const char* layout :
         {"tp=1", "tp=2,dp_shard=2,recompute=full", "ep=2,dp_shard=2,cp=2,strategy=ring,recompute=every:2",
          "pp=2,dp_shard=2,zero=1", "ep=4,dp_shard=4,bucket=2", "pp=2,virtual_stages=2,tp=2"}) {
      if (model.prediction_layers > 0 && std::string_view(layout).find("bucket") != std::string_view::npos)
        continue;  // prediction layers have no buckets
      const StepProof proof = prove_step(request_of(model, layout));
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
  softmax.experts->moves_corrections = true;
  for (const char* optimizer : {"sgd", "sgd_momentum", "adamw:offload", "adamw_16"}) {
    StepRequest request = request_of(softmax, "ep=2,dp_shard=2");
    request.workload.optimizer = parse_optimizer(optimizer);
    const StepProof proof = prove_step(request);
    EXPECT_TRUE(proof.holds()) << optimizer << ": " << proof.finding();
  }
}

// Loads are those of all replicas and micro-batches, and of no tp rank or layer that is computed again twice.
TEST(ProveStep, HoldsForCorrectionsThatMove) {
  Transformer moves = testing::model_that_corrects_scores();
  moves.experts->moves_corrections = true;
  Transformer predicting = moves;
  predicting.prediction_layers = 2;
  set_layers(predicting, {{{}, {}, true}, {}, {}, {}});
  for (const Transformer& model : {moves, predicting}) {
    for (const char* layout :
         {"tp=1,recompute=full", "tp=2,dp_shard=2,recompute=every:2", "ep=2,dp_shard=2,dp_replicate=2",
          "ep=2,dp_shard=2,cp=2,strategy=ring,balance=head_tail,sharding=dp_shard", "pp=2,dp_shard=2,zero=1",
          "pp=2,virtual_stages=2,cp=2,strategy=ulysses,recompute=full"}) {
      const StepProof proof = prove_step(request_of(model, layout));
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
}

// Rows that attention and MLP share, under all that splits or moves them.
TEST(ProveStep, HoldsForParallelBlocks) {
  Transformer dense = dense_model(), experts = testing::model_of_experts();
  dense.tied_embeddings = dense.out_bias = dense.numerics.interleaved_rotary = true;
  dense.numerics.norm_centered = true, dense.numerics.logit_scale = 0.25;
  LayerKind window, full;
  window.window = 7, full.rotary = false;
  set_layers(dense, {window, full, window, full});
  experts.experts->shared = 12, experts.qk_norm = true;
  dense.parallel_blocks = experts.parallel_blocks = true;
  for (const char* layout :
       {"tp=1", "tp=2,dp_shard=2,recompute=selective", "tp=2,sequence_parallel=no",
        "cp=2,tp=2,strategy=ring,balance=head_tail", "cp=3,strategy=all_gather,recompute=full", "pp=2,tp=2",
        "cp=2,strategy=ulysses,mlp_chunks=3", "dp_shard=4,bucket=2,recompute=every:2"}) {
    const StepProof proof = prove_step(request_of(dense, layout));
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
  }
  for (const char* layout : {"tp=2,dp_shard=2", "ep=2,dp_shard=2,recompute=full",
                             "ep=4,cp=2,dp_shard=2,strategy=ring", "pp=2,cp=2,strategy=ulysses"}) {
    const StepProof proof = prove_step(request_of(experts, layout));
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
  }
}

// What Llama 4's, gpt-oss's and Qwen2-MoE's layers do beside those of others, each under layouts that split
// it: rows between tensor-parallel regions and whole ones, experts, recomputation, stages.
TEST(ProveStep, HoldsForFactsOfFamilies) {
  LayerKind chunk{{}, 8, false, Mixer::attention, true}, without;
  without.rotary = false;
  Transformer llama4 = testing::model_of_experts();
  llama4.experts = Experts{4, 1, 24, 12};
  llama4.qk_norm = llama4.qk_norm_behind_rotary = true;
  llama4.numerics.router.sigmoid = llama4.numerics.weighs_expert_inputs = true;
  llama4.numerics.router.normalized = false;
  llama4.numerics.interleaved_rotary = true, llama4.numerics.temperature = {0.5, 4};
  set_layers(llama4, {chunk, without, chunk, without});
  Transformer gpt_oss = testing::model_of_experts();
  gpt_oss.experts->biases = gpt_oss.qkv_bias = gpt_oss.out_bias = gpt_oss.sinks = true;
  gpt_oss.numerics.activation = ActivationFunction::quick_gelu;
  gpt_oss.numerics.activation_limit = 0.75, gpt_oss.numerics.up_offset = 1;
  Transformer gated = testing::model_of_experts();
  gated.experts = Experts{4, 2, 24, 12, true};
  gated.numerics.activation = ActivationFunction::identity;  // gates alone
  for (const Transformer& model : {llama4, gpt_oss, gated}) {
    for (const char* layout :
         {"tp=2,sequence_parallel=no", "tp=2,dp_shard=2,recompute=selective",
          "ep=2,dp_shard=2,recompute=full", "ep=4,cp=2,dp_shard=2,strategy=ring,balance=head_tail",
          "pp=2,cp=2,strategy=ulysses"}) {
      StepRequest request = request_of(model, layout);
      request.workload.expert_imbalance = 1.25;
      const StepProof proof = prove_step(request);
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
}

// Frequencies that are scaled, those of layers with a window alone, and larger or smaller scores; with rows
// that tensor-parallel ranks split, and latent ones.
TEST(ProveStep, HoldsForScaledRotaryPositions) {
  Transformer gemma = dense_model();
  const LayerKind full, window{7, {}, false, Mixer::attention, true};
  set_layers(gemma, {window, full, window, full});
  gemma.numerics.rotary = {.theta = 1e6, .scaling = RotaryScaling::linear, .factor = 8};
  gemma.numerics.window_rotary.emplace().theta = 100;
  gemma.numerics.score_scale = 0.8;
  Transformer yarn = gemma;
  yarn.numerics.window_rotary.reset();
  yarn.numerics.rotary = {.scaling = RotaryScaling::yarn,
                          .factor = 4,
                          .high = 8,
                          .original = 12,
                          .whole_pairs = false,
                          .magnitude = 1.25};
  Transformer latent = dense_model();
  latent.kv_heads = latent.q_heads, latent.qk_norm = latent.qkv_bias = false;
  latent.latent = Latent{12, 8, 4, 6};
  latent.numerics.rotary = yarn.numerics.rotary, latent.numerics.rotary.whole_pairs = true;
  latent.numerics.interleaved_rotary = true, latent.numerics.score_scale = 1.3;
  for (const Transformer& model : {gemma, yarn, latent}) {
    for (const char* layout : {"tp=1", "tp=2,dp_shard=2,recompute=full",
                               "cp=2,strategy=ring,balance=head_tail,recompute=selective", "pp=2"}) {
      const StepProof proof = prove_step(request_of(model, layout));
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
}

// No layer looks from one document into another, whatever cuts it beside, and no token is predicted from
// another document's.
TEST(ProveStep, HoldsForPackedDocuments) {
  Transformer windows = dense_model();
  const LayerKind full, window{7, {}, false, Mixer::attention, true},
      chunk{{}, 8, false, Mixer::attention, true};
  set_layers(windows, {window, full, chunk, full});
  Transformer predicting = dense_model();
  predicting.prediction_layers = 2;
  for (const Transformer& model : {dense_model(), windows, predicting}) {
    for (const char* layout :
         {"tp=1", "cp=2,strategy=ring,balance=head_tail", "cp=3,strategy=all_gather",
          "tp=2,cp=2,strategy=ulysses", "cp=2,strategy=need_only,dp_shard=2", "pp=2,dp_shard=2"}) {
      StepRequest request = request_of(model, layout);
      request.workload.cu_seqlens = {0, 1, 12, testing::kOddLength};
      const StepProof proof = prove_step(request);
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
    }
  }
}

// Each sequence has documents of its own, and each micro-batch plans of its own: one document, of which other
// sequences have several, and documents of one token, without any label.
TEST(ProveStep, HoldsForDocumentsOfEachSequence) {
  Transformer windows = dense_model();
  const LayerKind full, window{7, {}, false, Mixer::attention, true};
  set_layers(windows, {window, full, window, full});
  Transformer predicting = testing::model_of_experts();
  predicting.prediction_layers = 2;
  Transformer recurs = dense_model();
  recurs.recurrence = Recurrence{RecurrenceRule::delta, 4, 8, 6, 5, 4, false};
  LayerKind attends, recurrent;
  recurrent.mixer = Mixer::recurrence;
  set_layers(recurs, {recurrent, attends, recurrent, attends});
  const auto expect_proved = [](const Transformer& model, const char* layout) {
    StepRequest request = request_of(model, layout);
    auto& documents = request.workload.cu_seqlens_of_sequence;
    const std::int64_t sequences = request.workload.global_batch;
    for (std::int64_t s = 0; s < sequences; ++s)
      documents.push_back(draw_documents(testing::kOddLength,
                                         s == 1 && sequences > 2 ? testing::kOddLength : 1 + s % 4,
                                         static_cast<std::uint64_t>(s)));
    ASSERT_EQ(refuse(request.model, request.workload, request.layout), std::nullopt) << layout;
    const StepProof proof = prove_step(request);
    EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
  };
  for (const char* layout :
       {"tp=1,micro_batch=2", "dp_shard=2,micro_batch=2",
        "cp=2,strategy=ring,balance=head_tail,dp_replicate=2", "cp=3,strategy=all_gather,micro_batch=2",
        "tp=2,cp=2,strategy=ulysses", "pp=2,cp=2,strategy=need_only,micro_batch=2",
        "pp=2,virtual_stages=2,dp_shard=2"})
    expect_proved(dense_model(), layout);
  expect_proved(windows, "cp=2,strategy=ring,micro_batch=2");
  expect_proved(predicting, "cp=2,dp_shard=2,strategy=ring");
  expect_proved(recurs, "cp=2,dp_shard=2,strategy=ring,balance=head_tail");
}

// The balance splits each document by itself, so that ranks have different numbers of rows.
TEST(ProveStep, HoldsForDocumentsThatAreSplitOneByOne) {
  StepRequest request = request_of(dense_model(), "cp=2,strategy=ring,balance=per_document:head_tail,tp=2");
  request.workload.cu_seqlens = {0, 3, 8, 9, testing::kOddLength};
  ASSERT_EQ(refuse(request.model, request.workload, request.layout), std::nullopt);
  const StepProof proof = prove_step(request);
  EXPECT_TRUE(proof.holds()) << proof.finding();
}

// Of each rule of a recurrence: rows see a halo, which documents cut, and one that comes from two ranks.
TEST(ProveStep, HoldsForRecurrentLayers) {
  Transformer delta = dense_model();
  delta.recurrence = Recurrence{RecurrenceRule::delta, 4, 8, 6, 5, 4, false};
  Transformer decay = dense_model();
  decay.recurrence = Recurrence{RecurrenceRule::decay, 2, 4, 6, 5, 4, true};
  LayerKind attends, recurs;
  recurs.mixer = Mixer::recurrence;
  for (Transformer* const model : {&delta, &decay}) {
    set_layers(*model, {recurs, attends, recurs, attends});
    for (const char* layout :
         {"tp=1,micro_batch=2", "tp=2,dp_shard=2", "cp=2,strategy=ring,balance=head_tail,recompute=selective",
          "cp=2,strategy=ring,scan_balance=head_tail", "cp=2,tp=2,strategy=all_gather,scan=sequential",
          "cp=2,strategy=ulysses,scan=heads,recompute=full"}) {
      for (const std::vector<std::int64_t>& documents :
           {std::vector<std::int64_t>{}, {0, 2, 14, testing::kOddLength}}) {
        StepRequest request = request_of(*model, layout);
        request.workload.cu_seqlens = documents;
        ASSERT_EQ(refuse(request.model, request.workload, request.layout), std::nullopt) << layout;
        const StepProof proof = prove_step(request);
        EXPECT_TRUE(proof.holds()) << layout << " " << documents.size() << ": " << proof.finding();
      }
    }
  }
}

// Which tokens are dropped depends on the rows of the ranks, on ep, and on the micro-batch.
TEST(ProveStep, HoldsWhereExpertsDropTokens) {
  for (const char* layout : {"tp=1", "tp=1,micro_batch=2", "ep=2,dp_shard=2",
                             "ep=4,cp=2,dp_shard=2,strategy=ring,balance=head_tail", "ep=2,tp=2,dp_shard=2",
                             "pp=2,cp=2,ep=2,strategy=all_gather"}) {
    for (const double imbalance : {1.0, 1.25}) {
      StepRequest request = request_of(testing::model_of_experts(), layout);
      request.workload.expert_imbalance = imbalance;
      const StepProof proof = prove_step(request);
      EXPECT_TRUE(proof.holds()) << layout << ": " << proof.finding();
      EXPECT_GT(proof.dropped, 0) << layout;
      EXPECT_EQ(proof.choices, request.workload.tokens() * 2 * request.model.layers) << layout;
    }
  }
}

// Which weights are dropped does not depend on the layout: each of them has the results of one device with
// the same seed. Heads are split, once over more ranks than there are kv heads; rows are; micro-batches have
// their sequences, stages their layers, and layers are computed again.
TEST(ProveStep, HoldsForDropout) {
  const auto expect_proved = [](const Transformer& model, const char* layout) {
    StepRequest request = request_of(model, layout);
    request.workload.attention_dropout = 0.3;
    const StepProof proof = prove_step(request);
    EXPECT_TRUE(proof.holds()) << model.name << " " << layout << ": " << proof.finding();
  };
  for (const char* layout :
       {"tp=1", "tp=4", "dp_shard=2,micro_batch=2", "dp_replicate=2,pp=2", "pp=2,virtual_stages=2",
        "cp=2,strategy=ring,balance=head_tail", "cp=3,strategy=all_gather,recompute=full",
        "cp=2,strategy=ulysses,recompute=every:2", "tp=2,cp=2,dp_shard=2,strategy=pass_q",
        "tp=2,cp=2,strategy=need_only,balance=striped", "cp=4,strategy=ring,ulysses_degree=2"})
    expect_proved(dense_model(), layout);
  Transformer model = dense_model();
  model.name = "of windows", model.sinks = true, model.prediction_layers = 1;
  LayerKind window;
  window.window = 9;
  set_layers(model, {{}, window, window, {}});
  for (const char* layout : {"cp=2,strategy=ring,window_strategy=need_only,balance=head_tail", "pp=2,tp=2"})
    expect_proved(model, layout);
  model = dense_model();
  model.name = "latent", model.kv_heads = 4, model.latent = Latent{0, 12, 2, 8};
  for (const char* layout : {"tp=2,cp=2,strategy=ring,keys=latent", "cp=2,strategy=all_gather"})
    expect_proved(model, layout);
}

TEST(ProveStep, RefusesWhatIsNoTraining) {
  StepRequest request = request_of(dense_model(), "tp=1");
  request.workload.phase = Phase::prefill;
  EXPECT_THAT(testing::message_of([&] { prove_step(request); }), HasSubstr("phase prefill has no loss"));
}

}  // namespace
}  // namespace cp::sim
