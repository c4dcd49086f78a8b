// The reference of a whole step: against losses in closed form and those of Hugging Face's implementations,
// and against itself where two computations have one result.
#include "sim/proof/reference/reference_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/reference/reference_parameters.h"
#include "tests/proof/reference_models.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

// The largest difference of any two elements, divided by the norm of the expected ones.
double distance(const sim::NamedMatrices& actual, const sim::NamedMatrices& expected) {
  double most = 0;
  for (const auto& [name, matrix] : expected.all()) {
    const std::vector<double>& values = actual.at(name).values;
    for (std::size_t i = 0; i < values.size(); ++i)
      most = std::max(most, std::abs(values[i] - matrix.values[i]));
  }
  return most / sim::norm_of(expected);
}
// Results that differ in the order of sums: some thousand terms of 1e-16 of the whole each.
constexpr double kRounding = 1e-12;

// ---- against numbers from elsewhere ----

struct PublishedStep {
  ReferenceCase of;
  double loss, norm;
};

// transformers 4.57.6 with torch 2.15, all in float64, attention "eager", computed both from these very
// parameters and this batch; of most, gradients were compared one by one, and were equal to 1e-13. Weights of
// norms were put in less 1 into Qwen3-Next, which adds it.
std::deque<PublishedStep> published_steps() {  // which moves none when it grows
  std::deque<PublishedStep> steps;
  const auto add = [&](const char* name, double loss, double norm) -> ReferenceCase& {
    return steps.emplace_back(PublishedStep{{name, tiny_model(), {}}, loss, norm}).of;
  };
  add("LlamaForCausalLM", 3.70966517697318, 3.51031416160299);
  add("LlamaForCausalLM, rope_type llama3", 3.42118786766688, 3.87164786186142).rules.rotary = {
      .scale = sim::RotaryScale::llama3, .factor = 4, .original = 8};
  Transformer& qwen2 = add("Qwen2ForCausalLM", 3.23170223990494, 2.88217841886232).model;
  qwen2.qkv_bias = qwen2.tied_embeddings = true;
  add("Qwen3ForCausalLM", 3.72924217834513, 3.552912720643).model.qk_norm = true;
  Transformer& olmo2 = add("Olmo2ForCausalLM", 3.71096390834017, 3.61477903402061).model;
  olmo2.qk_norm = olmo2.qk_norm_of_all_heads = olmo2.norms_behind = true, olmo2.norms_before = false;
  ReferenceCase& gemma2 = add("Gemma2ForCausalLM", 3.91253474839052, 6.36978354234404);
  gemma2.model.norms_behind = true, gemma2.model.softcap = 1.5;
  gemma2.rules.activation = sim::MlpActivation::gelu_tanh;
  gemma2.rules.norm_unit_offset = true, gemma2.rules.logit_softcap = 2;
  gemma2.rules.embedding_scale = std::sqrt(12);
  set_layers(gemma2.model, {{3, {}}, {}});
  add("MixtralForCausalLM", 3.87001519238976, 3.4979207521202).model.experts = Experts{4, 2, 6, 0};
  ReferenceCase& deepseek = add("DeepseekV3ForCausalLM", 3.68620301990194, 4.71054223626235);
  deepseek.model.kv_heads = 4, deepseek.model.latent = Latent{5, 7, 2, 3};
  deepseek.model.experts = Experts{6, 2, 5, 6};
  deepseek.rules.router = {true, true, 2.5, 3, 2}, deepseek.rules.rotary.neighbours = true;
  set_layers(deepseek.model, {{{}, {}, true}, {}});
  ReferenceCase& deepseek_v2 = add("DeepseekV2ForCausalLM", 3.43417936559517, 4.34768786479824);
  deepseek_v2.model = deepseek.model, deepseek_v2.model.latent->q_rank = 0;
  deepseek_v2.rules.router = {false, false, 2.5, 3, 2}, deepseek_v2.rules.rotary.neighbours = true;
  Transformer& qwen3_next = add("Qwen3NextForCausalLM", 3.54376179581554, 8.8848217523573).model;
  qwen3_next.qk_norm = qwen3_next.gated_attention = true;
  qwen3_next.recurrence = Recurrence{RecurrenceRule::delta, 2, 4, 4, 4, 3, false};
  set_layers(qwen3_next, {{{}, {}, false, Mixer::recurrence}, {}});
  Transformer& bamba = add("BambaForCausalLM", 3.28443738744285, 3.33833238591838).model;  // Mamba-2
  bamba.recurrence = Recurrence{RecurrenceRule::decay, 1, 4, 5, 6, 4, true};
  set_layers(bamba, {{{}, {}, false, Mixer::recurrence}, {}});
  // Those of transformers 5.24, whose frequencies of rotary positions were made in float64, too.
  Transformer& biased = add("LlamaForCausalLM, attention_bias", 3.91933095621176, 4.49588870641215).model;
  biased.qkv_bias = biased.out_bias = true;
  add("LlamaForCausalLM, one limit of rope_type llama3", 3.71807806182624, 3.61096726463943).rules.rotary = {
      .scale = sim::RotaryScale::llama3, .factor = 4, .high = 1, .original = 20};
  const LayerKind without{{}, {}, false, Mixer::attention, true, false};
  Transformer& smollm3 = add("SmolLM3ForCausalLM", 3.02017970016399, 4.26641719449102).model;
  smollm3.layers = 4, smollm3.tied_embeddings = true;
  set_layers(smollm3, {{}, {}, {}, without});
  ReferenceCase& llama4 = add("Llama4ForCausalLM", 3.23254369524534, 4.3083136640703);
  llama4.model.experts = Experts{4, 1, 10, 10};
  llama4.model.qk_norm = llama4.model.qk_norm_behind_rotary = true;
  llama4.rules.router.sigmoid = llama4.rules.weighs_expert_inputs = llama4.rules.rotary.neighbours = true;
  llama4.rules.router.normalized = false;
  llama4.rules.temperature_scale = 0.5, llama4.rules.temperature_floor = 2;
  set_layers(llama4.model, {{{}, 4}, without});
  ReferenceCase& gpt_oss = add("GptOssForCausalLM", 3.83244378103246, 3.52030955835341);
  gpt_oss.model.experts = Experts{4, 2, 10, 0, false, true};
  gpt_oss.model.qkv_bias = gpt_oss.model.out_bias = gpt_oss.model.sinks = true;
  gpt_oss.rules.activation = sim::MlpActivation::quick_gelu;
  gpt_oss.rules.activation_limit = 0.5, gpt_oss.rules.up_offset = 1;
  set_layers(gpt_oss.model, {{3, {}}, {}});
  ReferenceCase& corrected =
      add("DeepseekV3ForCausalLM, e_score_correction_bias", 3.642475226123954, 4.227383360552117);
  corrected.model = deepseek.model, corrected.rules = deepseek.rules;
  corrected.model.experts->corrects_scores = true;
  ReferenceCase& qwen2_moe = add("Qwen2MoeForCausalLM", 3.78375149102782, 3.13788004453255);
  qwen2_moe.model.experts = Experts{4, 2, 6, 5, true}, qwen2_moe.model.qkv_bias = true;
  qwen2_moe.rules.router.normalized = false;
  // With frequencies that are scaled, of which some are between the limits.
  sim::RotaryRules yarn;
  yarn.theta = 100, yarn.scale = sim::RotaryScale::yarn, yarn.factor = 4, yarn.high = 2, yarn.original = 16;
  yarn.truncate = false, yarn.size = 0.1 * std::log(4) + 1;
  add("LlamaForCausalLM, rope_type yarn", 3.68051795948603, 3.51918465337955).rules.rotary = yarn;
  ReferenceCase& deepseek_yarn =
      add("DeepseekV3ForCausalLM, yarn with mscale_all_dim", 2.95118229456674, 4.38030555764305);
  deepseek_yarn.model = deepseek.model, deepseek_yarn.rules = deepseek.rules;
  deepseek_yarn.model.latent->rope_dim = 4, deepseek_yarn.model.head_dim = 7;
  deepseek_yarn.model.experts = Experts{6, 2, 6, 6};
  yarn.theta = 20, yarn.original = 12, yarn.truncate = true;
  yarn.size /= 0.05 * std::log(4) + 1, yarn.neighbours = true;
  deepseek_yarn.rules.rotary = yarn, deepseek_yarn.rules.score_scale = std::pow(0.05 * std::log(4) + 1, 2);
  ReferenceCase& cohere = add("CohereForCausalLM", 2.8513686590671, 0.630862111409419);
  cohere.model.parallel_blocks = cohere.model.tied_embeddings = true;
  cohere.rules.norm_centered = cohere.rules.rotary.neighbours = true, cohere.rules.logit_scale = 0.25;
  ReferenceCase& cohere2 = add("Cohere2ForCausalLM", 3.8885862559018656, 6.281719945201223);
  cohere2.model = cohere.model, cohere2.rules = cohere.rules, cohere2.rules.logit_scale = 2;
  set_layers(cohere2.model, {{3, {}}, without});
  ReferenceCase& gemma3 = add("Gemma3ForCausalLM", 4.95962652642392, 14.4316532238973);
  gemma3.model.norms_behind = gemma3.model.qk_norm = true;
  gemma3.rules = gemma2.rules, gemma3.rules.logit_softcap = 0;
  gemma3.rules.rotary.theta = 100, gemma3.rules.rotary.factor = 4;
  gemma3.rules.rotary.scale = sim::RotaryScale::linear;
  gemma3.rules.window_rotary.emplace().theta = 20;
  gemma3.rules.score_scale = std::sqrt(6.0 / 9);  // query_pre_attn_scalar is 9
  set_layers(gemma3.model, {{3, {}}, {}});
  // Of transformers 5.24 with torch 2.15; gradients were equal to 1e-14, one by one.
  const LayerKind convolves{{}, {}, false, Mixer::convolution};
  Transformer& lfm2 = add("Lfm2ForCausalLM", 3.2927528372563044, 6.169630461061045).model;
  lfm2.qk_norm = lfm2.tied_embeddings = true, lfm2.convolution = ShortConvolution{3, false};
  set_layers(lfm2, {convolves, {}});
  Transformer& lfm2_biased = add("Lfm2ForCausalLM, conv_bias", 3.6258637310549826, 6.01061096081707).model;
  lfm2_biased.qk_norm = true, lfm2_biased.convolution = ShortConvolution{4, true};
  lfm2_biased.layers = 3;
  set_layers(lfm2_biased, {convolves, {}, convolves});
  // Where norm_topk_prob is true, it adds 1e-6 to the sum that weights are divided by.
  ReferenceCase& lfm2_moe = add("Lfm2MoeForCausalLM", 2.9558531139826068, 8.610310615295278);
  lfm2_moe.model.qk_norm = true, lfm2_moe.model.convolution = ShortConvolution{3, false};
  lfm2_moe.model.experts = Experts{4, 2, 6, 0, false, false, true};
  lfm2_moe.rules.router.sigmoid = true, lfm2_moe.rules.router.normalized = false;
  lfm2_moe.rules.router.factor = 2.5, lfm2_moe.model.layers = 3;
  set_layers(lfm2_moe.model, {{{}, {}, true, Mixer::convolution}, convolves, {}});
  return steps;
}

TEST(ReferenceStep, HasTheLossAndTheNormOfHuggingFacesModels) {
  for (const auto& [of, loss, norm] : published_steps()) {
    SCOPED_TRACE(of.name);
    const sim::ReferenceBatch batch = sim::draw_batch({of.model.vocab, 3, 9, 1, 0.2, 0, 5});
    const sim::ReferenceGradients pass =
        sim::reference_gradients(of.model, of.rules, sim::draw_parameters(of.model, 3), batch);
    EXPECT_NEAR(pass.loss.loss(), loss, kRounding);
    EXPECT_NEAR(sim::norm_of(pass.gradients), norm, kRounding * norm);
  }
}

// Logits that are all equal give each token the probability 1/V.
TEST(ReferenceStep, EqualLogitsLoseTheLogarithmOfTheVocabulary) {
  Transformer model = tiny_model();
  model.prediction_layers = 1;
  sim::NamedMatrices parameters = sim::draw_parameters(model, 3);
  parameters.at("lm_head.weight") = sim::Matrix64(model.vocab, model.hidden);
  const sim::ReferenceBatch batch = sim::draw_batch({model.vocab, 2, 9, 1, 0, 0, 5});
  const sim::ReferenceLoss loss = sim::reference_loss(model, {}, parameters, batch);
  EXPECT_EQ(loss.labelled, 16);
  EXPECT_NEAR(loss.losses[0], std::log(17), kRounding);
  // The last label is one position further, so that it has 14 labels; and the sum is divided by 16.
  EXPECT_NEAR(loss.losses[1], std::log(17) * 14 / 16, kRounding);
  EXPECT_NEAR(loss.objective, loss.losses[0] + 0.3 * loss.losses[1], kRounding);
}

// ---- against itself ----

// With a matrix that takes nothing of the rows before, and the embedded rows as they are, a prediction layer
// is the only layer of a model whose table has these rows normalized, and whose tokens and labels are those
// one position further.
TEST(ReferenceStep, APredictionLayerIsAModelOfTheTokensAhead) {
  Transformer model = tiny_model();
  model.prediction_layers = 1;
  sim::NamedMatrices parameters = sim::draw_parameters(model, 3);
  const std::string prefix = sim::layer_prefix(model.layers), table = "model.embed_tokens.weight";
  sim::Matrix64& join = parameters.at(prefix + "eh_proj.weight");
  join = sim::Matrix64(model.hidden, 2 * model.hidden);
  for (std::int64_t i = 0; i < model.hidden; ++i) join.row(i)[model.hidden + i] = 1;

  Transformer alone = tiny_model();
  alone.layers = 1;
  sim::NamedMatrices of_alone = sim::zero_parameters(alone);
  for (const auto& [name, zeros] : of_alone.all()) {
    const bool of_layer = name.starts_with(sim::layer_prefix(0));
    const std::string from = of_layer                      ? prefix + name.substr(sim::layer_prefix(0).size())
                             : name == "model.norm.weight" ? prefix + "shared_head.norm.weight"
                                                           : name;
    of_alone.at(name) = parameters.at(from);
  }
  const sim::Matrix64& weight = parameters.at(prefix + "enorm.weight");
  for (std::int64_t token = 0; token < model.vocab; ++token) {
    double* const row = of_alone.at(table).row(token);
    double squares = 0;
    for (std::int64_t j = 0; j < model.hidden; ++j)
      squares += row[j] * row[j] / static_cast<double>(model.hidden);
    for (std::int64_t j = 0; j < model.hidden; ++j)
      row[j] *= weight.values[idx(j)] / std::sqrt(squares + 1e-6);
  }

  const sim::ReferenceBatch batch = sim::draw_batch({model.vocab, 1, 9, 1, 0, 0, 5});
  const auto further = [](const std::vector<std::int32_t>& of) {
    return std::vector(of.begin() + 1, of.end());
  };
  const sim::ReferenceBatch ahead{8, further(batch.tokens), further(batch.labels), {{0, 8}}};
  ASSERT_LT(ahead.labelled(), batch.labelled());
  const double expected = sim::reference_loss(alone, {}, of_alone, ahead).loss() *
                          static_cast<double>(ahead.labelled()) / static_cast<double>(batch.labelled());
  EXPECT_NEAR(sim::reference_loss(model, {}, parameters, batch).losses[1], expected, kRounding);
}

// What documents give that are packed into sequences, and what each gives as a sequence of its own.
void expect_documents_alone(const ReferenceCase& of, const sim::NamedMatrices& parameters,
                            const sim::ReferenceBatch& batch) {
  const sim::ReferenceGradients packed = sim::reference_gradients(of.model, of.rules, parameters, batch);
  sim::NamedMatrices gradients = parameters.zeros();
  double loss = 0;
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const std::vector<std::int64_t>& cuts = batch.cu_seqlens[idx(s)];
    for (std::size_t d = 0; d + 1 < cuts.size(); ++d) {
      const auto rows = [&](const std::vector<std::int32_t>& from) {
        const auto begin = from.begin() + s * batch.seq_len;
        return std::vector(begin + cuts[d], begin + cuts[d + 1]);
      };
      const std::int64_t length = cuts[d + 1] - cuts[d];
      const sim::ReferenceBatch alone{length, rows(batch.tokens), rows(batch.labels), {{0, length}}};
      if (alone.labelled() == 0) continue;
      const sim::ReferenceGradients own = sim::reference_gradients(of.model, of.rules, parameters, alone);
      const double share = static_cast<double>(alone.labelled()) / static_cast<double>(batch.labelled());
      loss += share * own.loss.objective;
      for (const auto& [name, matrix] : own.gradients.all()) {
        std::vector<double>& sum = gradients.at(name).values;
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share * matrix.values[i];
      }
    }
  }
  RC_ASSERT(std::abs(packed.loss.objective - loss) < kRounding * (1 + loss));
  RC_ASSERT(distance(packed.gradients, gradients) < kRounding);
}

RC_GTEST_PROP(ReferenceStep, PackedDocumentsAreComputedAsIfEachWereAlone, ()) {
  const Transformer model = pick_case("model", [] {
                              StepRequest request{any_model(), {}, {}};
                              RC_PRE(request.model.layers < 4);
                              // Chunks are cut by positions of the sequence.
                              std::vector<LayerKind> layers;
                              for (std::int64_t i = 0; i < request.model.layers; ++i) {
                                layers.push_back(request.model.kinds[idx(request.model.kind_of(i))]);
                                layers.back().chunk.reset();
                              }
                              set_layers(request.model, layers);
                              return request;
                            }).model;
  ReferenceCase of{"any model", model, {}};
  of.rules.micro_batch = pick("micro_batch", rc::gen::inRange(1, 3));
  of.rules.positions_in_documents = pick("positions_in_documents", rc::gen::arbitrary<bool>());
  const std::int64_t seq_len = pick("seq_len", rc::gen::inRange(2, 9));
  const std::int64_t documents = pick("documents", rc::gen::inRange(1, 4));
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const sim::ReferenceBatch batch = sim::draw_batch({model.vocab, 2, seq_len, documents, 0.1, 0, seed});
  RC_PRE(batch.labelled() > 0);
  expect_documents_alone(of, sim::draw_parameters(model, seed), batch);
}

RC_GTEST_PROP(ReferenceStep, PackedDocumentsAreConvolvedAsIfEachWereAlone, ()) {
  ReferenceCase of{"short convolutions", tiny_model(), {}};
  of.model.convolution =
      ShortConvolution{pick("taps", rc::gen::inRange(1, 6)), pick("bias", rc::gen::arbitrary<bool>())};
  set_layers(of.model, {{{}, {}, false, Mixer::convolution}, {}});
  of.rules.micro_batch = pick("micro_batch", rc::gen::inRange(1, 3));
  const std::int64_t seq_len = pick("seq_len", rc::gen::inRange(2, 9));
  const std::int64_t documents = pick("documents", rc::gen::inRange(1, 4));
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const sim::ReferenceBatch batch = sim::draw_batch({of.model.vocab, 2, seq_len, documents, 0.1, 0, seed});
  RC_PRE(batch.labelled() > 0);
  expect_documents_alone(of, sim::draw_parameters(of.model, seed), batch);
}

// Scores depend on differences of positions alone.
TEST(ReferenceStep, ChunksAreDocumentsThatBeginAtTheirMultiples) {
  Transformer model = tiny_model();
  const sim::NamedMatrices parameters = sim::draw_parameters(model, 3);
  sim::ReferenceBatch batch = sim::draw_batch({model.vocab, 2, 11, 1, 0, 0, 5});
  Transformer chunked = model;
  chunked.kinds.front().chunk = 4;
  const sim::ReferenceGradients of_chunks = sim::reference_gradients(chunked, {}, parameters, batch);
  batch.cu_seqlens = {{0, 4, 8, 11}, {0, 4, 8, 11}};  // and the labels of their last tokens stay
  const sim::ReferenceGradients of_documents = sim::reference_gradients(model, {}, parameters, batch);
  EXPECT_NEAR(of_chunks.loss.loss(), of_documents.loss.loss(), kRounding);
  EXPECT_LT(distance(of_chunks.gradients, of_documents.gradients), kRounding);
}

TEST(ReferenceStep, MicroBatchesAddUpToTheBatch) {
  for (ReferenceCase of : reference_cases()) {
    SCOPED_TRACE(of.name);
    of.rules.drops = nullptr;  // capacities are those of a micro-batch
    const sim::NamedMatrices parameters = sim::draw_parameters(of.model, 3);
    // The first sequence has no label: its micro-batch must not count as much as others.
    const sim::ReferenceBatch batch = sim::draw_batch({of.model.vocab, 3, 9, 2, 0.2, 1, 5});
    of.rules.micro_batch = 3;
    const sim::ReferenceGradients whole = sim::reference_gradients(of.model, of.rules, parameters, batch);
    of.rules.micro_batch = 2;
    const sim::ReferenceGradients parts = sim::reference_gradients(of.model, of.rules, parameters, batch);
    EXPECT_NEAR(parts.loss.objective, whole.loss.objective, kRounding);
    EXPECT_LT(distance(parts.gradients, whole.gradients), kRounding);
  }
}

TEST(ReferenceStep, ATiedTablesGradientIsTheSumOfBothUses) {
  Transformer model = tiny_model();
  model.prediction_layers = 1;
  sim::NamedMatrices parameters = sim::draw_parameters(model, 3);
  const std::string table = "model.embed_tokens.weight", head = "lm_head.weight";
  parameters.at(head) = parameters.at(table);
  const sim::ReferenceBatch batch = tiny_batch(model);
  const sim::NamedMatrices apart = sim::reference_gradients(model, {}, parameters, batch).gradients;
  model.tied_embeddings = true;
  const sim::NamedMatrices tied =
      sim::reference_gradients(model, {}, sim::draw_parameters(model, 3), batch).gradients;
  for (std::size_t i = 0; i < tied.at(table).values.size(); ++i)
    EXPECT_NEAR(tied.at(table).values[i], apart.at(table).values[i] + apart.at(head).values[i], kRounding);
}

// ---- experts ----

TEST(ReferenceStep, DropsKeepTheFirstTokensOfEachExpert) {
  const sim::RoutedTokens routed{0, 0, 1, 4, 3, 2, {0, 1, 1, 0, 0, 2, 0, 1}};
  EXPECT_EQ(sim::drops_beyond(2)(routed),
            (std::vector<bool>{true, true, true, true, false, true, false, false}));
}

TEST(ReferenceStep, WhatIsDroppedAddsNothing) {
  ReferenceCase of{"experts", tiny_model(), {}};
  of.model.experts = Experts{4, 2, 6, 0};
  of.rules.keeps_activations = true;
  std::vector<std::int64_t> layers;
  of.rules.drops = [&](const sim::RoutedTokens& routed) {
    layers.push_back(routed.layer);
    return std::vector<bool>(routed.experts.size(), false);
  };
  const sim::ReferenceBatch batch = sim::draw_batch({of.model.vocab, 1, 9, 1, 0, 0, 5});
  const sim::ReferenceGradients pass =
      sim::reference_gradients(of.model, of.rules, sim::draw_parameters(of.model, 3), batch);
  EXPECT_THAT(layers, ::testing::ElementsAre(0, 1));
  for (const sim::NamedActivation& of_name : pass.activations.front()) {
    if (!of_name.name.ends_with("mlp_out")) continue;
    EXPECT_EQ(of_name.values, sim::Matrix64(9, of.model.hidden)) << of_name.name;
  }
  for (const auto& [name, matrix] : pass.gradients.all()) {
    if (name.find("mlp.") == std::string::npos) continue;
    EXPECT_EQ(matrix, sim::Matrix64(matrix.rows, matrix.columns)) << name;
  }
}

// ---- the whole step ----

TEST(ReferenceStep, UpdatesByClippedGradients) {
  const Transformer model = tiny_model();
  const sim::NamedMatrices parameters = sim::draw_parameters(model, 3);
  const sim::ReferenceBatch batch = tiny_batch(model);
  sim::OptimizerRules rules;
  rules.optimizer = parse_optimizer("sgd"), rules.learning_rate = 0.5, rules.weight_decay = 0;
  const sim::ReferenceStep step = sim::reference_step(
      model, {}, rules, parameters, sim::begin_optimizer(rules.optimizer, parameters), batch);
  EXPECT_GT(step.norm, 1);
  EXPECT_NEAR(step.clipped_norm(), 1, 2e-6);  // but for the 1e-6 of the factor
  EXPECT_EQ(step.state.steps, 1);
  for (const auto& [name, matrix] : parameters.all()) {
    const std::vector<double>&gradient = step.pass.gradients.at(name).values,
          &updated = step.parameters.at(name).values;
    for (std::size_t i = 0; i < updated.size(); ++i)
      EXPECT_DOUBLE_EQ(updated[i], matrix.values[i] - 0.5 * step.clip_factor * gradient[i]);
  }
  EXPECT_LT(sim::reference_loss(model, {}, step.parameters, batch).loss(), step.pass.loss.loss());
}

TEST(ReferenceStep, HandsOutWhatIsComputedOnTheWay) {
  ReferenceCase of{"dense", tiny_model(), {}};
  of.rules.keeps_activations = true, of.rules.micro_batch = 2;
  const sim::ReferenceBatch batch = tiny_batch(of.model);
  const sim::ReferenceGradients pass =
      sim::reference_gradients(of.model, of.rules, sim::draw_parameters(of.model, 3), batch);
  ASSERT_EQ(pass.activations.size(), 2);  // of 2 sequences and of 1
  std::vector<std::string> names;
  for (const sim::NamedActivation& activation : pass.activations.front()) names.push_back(activation.name);
  EXPECT_EQ(join(names, " "),
            "embedding layers.0.norm1 layers.0.q layers.0.k layers.0.v layers.0.out layers.0.attended "
            "layers.0.mid layers.0.norm2 layers.0.mlp_out layers.0.next layers.1.norm1 layers.1.q layers.1.k "
            "layers.1.v layers.1.out layers.1.attended layers.1.mid layers.1.norm2 layers.1.mlp_out "
            "layers.1.next final_norm logits");
  // A row's gradients of logits are probabilities, less 1 at the label, over the number of labels.
  const sim::NamedActivation& logits = pass.activations.back().back();
  ASSERT_EQ(logits.values.rows, 9);
  for (std::int64_t i = 0; i < 9; ++i) {
    const std::int32_t label = batch.labels[idx(18 + i)];
    double sum = 0;
    for (std::int64_t j = 0; j < of.model.vocab; ++j) {
      const double gradient = logits.gradient.row(i)[j];
      sum += gradient;
      EXPECT_EQ(gradient < 0, j == label);
      EXPECT_EQ(gradient == 0, label == sim::kIgnoredLabel);
    }
    EXPECT_NEAR(sum, 0, kRounding);
  }
}

TEST(ReferenceStep, WhatMakesNoSenseIsRefused) {
  ReferenceCase of{"experts", tiny_model(), {}};
  of.model.experts = Experts{4, 2, 6, 0};
  const sim::NamedMatrices parameters = sim::draw_parameters(of.model, 3);
  const sim::ReferenceBatch batch = tiny_batch(of.model);
  const auto message = [&](const Transformer& model, const sim::ReferenceRules& rules,
                           const sim::ReferenceBatch& data) {
    return message_of<InvalidInput>([&] { (void)sim::reference_loss(model, rules, parameters, data); });
  };
  EXPECT_THAT(message(of.model, {}, sim::draw_batch({17, 2, 5, 1, 0, 2, 1})),
              HasSubstr("no token of the batch has a label"));
  EXPECT_THAT(message(tiny_model(), {}, batch), HasSubstr("mlp.gate_proj"));
  sim::ReferenceRules rules;
  rules.router.groups = 3;
  EXPECT_THAT(message(of.model, rules, batch), HasSubstr("groups=3 must divide the 4 experts"));
  rules.router = {true, true, 1, 4, 1};
  EXPECT_THAT(message(of.model, rules, batch),
              HasSubstr("top_groups=1 of 4 groups leave 1 experts to choose 2"));
  rules = {}, rules.micro_batch = 0;
  EXPECT_THAT(message(of.model, rules, batch), HasSubstr("micro_batch=0 must be at least 1"));
  rules = {}, rules.rotary.theta = 0;
  EXPECT_THAT(message(of.model, rules, batch),
              HasSubstr("theta=0 and factor=1 of rotary positions must be above 0"));
  rules = {}, rules.window_rotary.emplace().low = 5;
  EXPECT_THAT(message(of.model, rules, batch), HasSubstr("and low=5 at most high=4"));
  rules = {}, rules.rotary.scale = sim::RotaryScale::yarn, rules.rotary.theta = 1;
  EXPECT_THAT(message(of.model, rules, batch), HasSubstr("theta=1, low=1 and original=8192 of yarn"));
  rules = {}, rules.drops = [](const sim::RoutedTokens&) { return std::vector<bool>(3); };
  EXPECT_THAT(message(of.model, rules, batch), HasSubstr("answers for 3 of 18 choices"));
}

}  // namespace
}  // namespace cp::testing
