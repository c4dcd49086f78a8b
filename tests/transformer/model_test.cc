#include "shared/transformer/model.h"

#include <limits>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/transformer/tensor_places.h"
#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

// Small enough to count by hand.
Transformer tiny() {
  Transformer model;
  model.name = "tiny";
  model.hidden = 8, model.layers = 3;
  model.q_heads = 4, model.kv_heads = 2, model.head_dim = 6;
  model.intermediate = 10, model.vocab = 11;
  return model;
}

TEST(ParameterCounts, OfADenseModelByHand) {
  const ParameterCounts counts = parameter_counts(tiny());
  EXPECT_EQ(counts.embedding, 11 * 8);
  EXPECT_EQ(counts.of(Mixer::attention).matrices, 8 * 24 + 8 * 12 + 8 * 12 + 24 * 8);
  EXPECT_EQ(counts.mlp, 3 * 8 * 10);
  EXPECT_EQ(counts.router, 0);
  EXPECT_EQ(counts.norms, 8);
  EXPECT_EQ(counts.final_norm, 8);
  EXPECT_EQ(counts.head, 88);
  EXPECT_EQ(counts.total, 88 + 3 * (576 + 240 + 16) + 8 + 88);
  EXPECT_EQ(counts.active, counts.total - 88);
}

TEST(ParameterCounts, BiasesAreOfQKAndV) {
  Transformer model = tiny();
  model.qkv_bias = true;
  EXPECT_EQ(parameter_counts(model).of(Mixer::attention).matrices, 576);
  EXPECT_EQ(parameter_counts(model).of(Mixer::attention).rows, 24 + 12 + 12);
}

TEST(ParameterCounts, NormsOfQAndKAreOfOneHead) {
  Transformer model = tiny();
  model.qk_norm = true;
  EXPECT_EQ(parameter_counts(model).of(Mixer::attention).rows, 6 + 6);
}

TEST(ParameterCounts, NormsOfAllHeadsAreAsWideAsQAndK) {
  Transformer model = tiny();
  model.qk_norm = model.qk_norm_of_all_heads = true;
  EXPECT_EQ(parameter_counts(model).of(Mixer::attention).rows, 24 + 12);
}

TEST(ParameterCounts, NormsBehindTheRotationHaveNoWeights) {
  Transformer model = tiny();
  model.qk_norm = model.qk_norm_behind_rotary = true;
  EXPECT_EQ(parameter_counts(model).total, parameter_counts(tiny()).total);
}

TEST(ParameterCounts, OfWhatStandsBesideMatrices) {
  Transformer model = tiny();
  model.experts = Experts{5, 2, 7, 4};
  const ParameterCounts without = parameter_counts(model);
  model.out_bias = true, model.experts->shared_gate = model.experts->biases = true;
  const ParameterCounts with = parameter_counts(model);
  EXPECT_EQ(with.of(Mixer::attention).rows, without.of(Mixer::attention).rows + 8);
  constexpr std::int64_t kOfExpert = 2 * 7 + 8, kGate = 8, kRouter = 5;
  EXPECT_EQ(with.experts, without.experts + 5 * kOfExpert);
  EXPECT_EQ(with.router, without.router + kRouter);
  EXPECT_EQ(with.total, without.total + 3 * (8 + 5 * kOfExpert + kGate + kRouter));
  EXPECT_EQ(with.active, without.active + 3 * (8 + 2 * kOfExpert + kGate + kRouter));
  // A token's products are those with matrices, of which the gate is one.
  EXPECT_EQ(with.multiplied, without.multiplied + 3 * kGate);
}

// They are buffers in Transformers' classes, and no published count has them.
TEST(ParameterCounts, HaveNoCorrectionsOfScores) {
  Transformer model = tiny();
  model.experts = Experts{5, 2, 7, 4};
  const ParameterCounts without = parameter_counts(model);
  model.experts->corrects_scores = true;
  const ParameterCounts with = parameter_counts(model);
  EXPECT_EQ(with.total, without.total);
  EXPECT_EQ(with.active, without.active);
  EXPECT_EQ(with.multiplied, without.multiplied);
}

// One norm of a layer fewer, and nothing else.
TEST(ParameterCounts, OfParallelBlocks) {
  Transformer model = tiny();
  model.experts = Experts{5, 2, 7, 4};
  LayerKind window;
  window.window = 3, window.dense = true;
  set_layers(model, {{}, window, {}});
  const ParameterCounts without = parameter_counts(model);
  model.parallel_blocks = true;
  const ParameterCounts with = parameter_counts(model);
  EXPECT_EQ(without.total - with.total, 3 * model.hidden);
  EXPECT_EQ(without.active - with.active, 3 * model.hidden);
  EXPECT_EQ(without.multiplied, with.multiplied);
  // As tensors have them, and so as weights have them on a rank.
  std::int64_t of_tensors = 0;
  for (const TensorShape& shape : tensors_of_model(model)) of_tensors += shape.rows * shape.columns;
  EXPECT_EQ(of_tensors, with.total);
}

TEST(ValidateModel, RefusesWhatItsLayersCannotHave) {
  const auto said = [](auto change) {
    Transformer model = tiny();
    change(model);
    return message_of([&] { validate_model(model); });
  };
  EXPECT_THAT(said([](Transformer& m) { m.qk_norm_behind_rotary = true; }),
              HasSubstr("and qk_norm is false"));
  EXPECT_THAT(
      said([](Transformer& m) { m.qk_norm = m.qk_norm_of_all_heads = m.qk_norm_behind_rotary = true; }),
      HasSubstr("norms behind the rotation are of each head"));
  EXPECT_THAT(said([](Transformer& m) { m.parallel_blocks = m.norms_behind = true; }),
              HasSubstr("parallel_blocks=true needs norms_before=true and norms_behind=false"));
  EXPECT_THAT(said([](Transformer& m) {
                m.parallel_blocks = true, m.kv_heads = m.q_heads, m.latent = Latent{0, 8, 1, 4};
              }),
              HasSubstr("parallel_blocks with latent attention: such layers are not described"));
  EXPECT_THAT(said([](Transformer& m) {
                m.parallel_blocks = true;
                set_layers(m, {{}, {{}, {}, false, Mixer::attention, false}, {}});
              }),
              HasSubstr("a kind of layers has the mixer attention and no MLP"));
  EXPECT_THAT(said([](Transformer& m) {
                m.parallel_blocks = true;
                set_layers(m, {{}, {{}, {}, false, Mixer::none}, {}});
              }),
              HasSubstr("a kind of layers has the mixer none; both attention and an MLP"));
  EXPECT_THAT(said([](Transformer& m) {
                m.experts = Experts{5, 2, 7};
                m.experts->shared_gate = true;
              }),
              HasSubstr("is of a shared MLP, and experts.shared is 0"));
  EXPECT_THAT(said([](Transformer& m) {
                m.experts = Experts{5, 2, 7};
                m.experts->biases = m.numerics.weighs_expert_inputs = true;
              }),
              HasSubstr("the nearest thing is outputs that are weighed"));
  EXPECT_THAT(said([](Transformer& m) {
                m.experts = Experts{5, 2, 7};
                m.experts->moves_corrections = true;
              }),
              HasSubstr("and corrects_scores is false; set it"));
  EXPECT_THAT(said([](Transformer& m) { m.gated_mlp = false, m.numerics.up_offset = 1; }),
              HasSubstr("up_offset=1 is added to what gates multiply"));
  EXPECT_THAT(said([](Transformer& m) { m.numerics.activation_limit = -1; }),
              HasSubstr("activation_limit=-1 and up_offset=0"));
  EXPECT_THAT(said([](Transformer& m) { m.numerics.temperature.floor = 0; }),
              HasSubstr("the floor a number of positions above 0"));
  EXPECT_THAT(said([](Transformer& m) { m.numerics.score_scale = 0; }), HasSubstr("score_scale=0 must be"));
  EXPECT_THAT(said([](Transformer& m) { m.numerics.logit_scale = 0; }), HasSubstr("logit_scale=0 must be"));
  EXPECT_THAT(
      said([](Transformer& m) { m.qk_norm = m.qk_norm_behind_rotary = m.numerics.norm_centered = true; }),
      HasSubstr("a rotation changes the mean of a head"));
  EXPECT_THAT(
      said([](Transformer& m) { m.qk_norm = m.qk_norm_of_all_heads = m.numerics.norm_centered = true; }),
      HasSubstr("use norms of each head"));
  EXPECT_THAT(said([](Transformer& m) { m.numerics.window_rotary.emplace(); }),
              HasSubstr("window_rotary is of layers with a window, and no kind has one"));
  EXPECT_THAT(said([](Transformer& m) {
                m.kinds.front().window = 4;
                m.numerics.window_rotary.emplace().theta = -1;
              }),
              HasSubstr("rope_theta=-1 of window_rotary must be"));
  EXPECT_THAT(
      said([](Transformer& m) {
        m.numerics.rotary.scaling = RotaryScaling::linear, m.numerics.rotary.factor = 0.5;
      }),
      HasSubstr("linear of rotary with factor=0.5 and 1 to 4 waves in 8192 positions scales nothing"));
  EXPECT_THAT(said([](Transformer& m) {
                m.numerics.rotary.scaling = RotaryScaling::yarn, m.numerics.rotary.theta = 1;
              }),
              HasSubstr("rope_theta=1 of rotary must be above 1 with yarn"));
  EXPECT_THAT(said([](Transformer& m) {
                m.qk_norm = m.qk_norm_behind_rotary = true, m.numerics.rotary.magnitude = 1.3;
              }),
              HasSubstr("norms behind the rotation (qk_norm_behind_rotary) take it away"));
  EXPECT_THAT(said([](Transformer& m) {
                m.kv_heads = m.q_heads, m.latent = Latent{0, 8, 1, 4};
                m.kinds.front().rotary = false;
              }),
              HasSubstr("latent attention always has a rotated part"));
  EXPECT_THAT(said([](Transformer& m) {
                m.recurrence = Recurrence{RecurrenceRule::delta, 2, 4, 3, 5, 4, false};
                set_layers(m, {{}, {{}, {}, false, Mixer::recurrence, true, false}, {}});
              }),
              HasSubstr("rotary=false is said of attention"));
}

TEST(ValidateModel, RefusesNormsOfAllHeadsWithoutNorms) {
  Transformer model = tiny();
  model.qk_norm_of_all_heads = true;
  EXPECT_THAT(message_of([&] { validate_model(model); }), HasSubstr("and qk_norm is false; set it"));
}

TEST(ParameterCounts, ASinkIsOneNumberOfAQueryHead) {
  Transformer model = tiny();
  const ParameterCounts without = parameter_counts(model);
  model.sinks = true, model.softcap = 50;  // which has no parameters
  const ParameterCounts with = parameter_counts(model);
  EXPECT_EQ(with.of(Mixer::attention).matrices, without.of(Mixer::attention).matrices);
  EXPECT_EQ(with.of(Mixer::attention).rows, without.of(Mixer::attention).rows + 4);
  constexpr std::int64_t kSinks = 3 * 4;  // of three layers with four heads
  EXPECT_EQ(with.total, without.total + kSinks);
  EXPECT_EQ(with.multiplied, without.multiplied);
}

TEST(ParameterCounts, OfGatesAndOfAnMlpWithTwoMatrices) {
  Transformer model = tiny();
  model.gated_attention = true, model.gated_mlp = false;
  EXPECT_EQ(parameter_counts(model).of(Mixer::attention).matrices, 576 + 8 * 24);
  EXPECT_EQ(parameter_counts(model).mlp, 2 * 8 * 10);
}

// 2 key heads of 3 and 4 value heads of 5: q, k and v are 6 + 6 + 20 elements.
TEST(ParameterCounts, OfRecurrencesByHand) {
  Transformer model = tiny();
  model.recurrence = Recurrence{RecurrenceRule::delta, 2, 4, 3, 5, 4, false};
  set_layers(model, {{}, {{}, {}, false, Mixer::recurrence, true}, {{}, {}, false, Mixer::none, true}});
  ParameterCounts counts = parameter_counts(model);
  EXPECT_EQ(counts.of(Mixer::recurrence).matrices, 8 * (32 + 20 + 2 * 4) + 20 * 8);
  EXPECT_EQ(counts.of(Mixer::recurrence).rows, 32 * 4 + 5 + 2 * 4);
  EXPECT_EQ(counts.layer({Mixer::recurrence, Mlp::dense}),
            counts.of(Mixer::recurrence).matrices + counts.of(Mixer::recurrence).rows + 240 + 16);
  EXPECT_EQ(counts.layer({Mixer::none, Mlp::dense}), 240 + 8);
  EXPECT_EQ(counts.total, 88 + (576 + 240 + 16) + (640 + 141 + 240 + 16) + (240 + 8) + 8 + 88);
  EXPECT_EQ(counts.multiplied, 576 + 640 + 3 * 240);
  // Mamba-2 has one number for each head in the projection, three that are learnt, and a wide norm.
  model.recurrence->rule = RecurrenceRule::decay, model.recurrence->convolution_bias = true;
  counts = parameter_counts(model);
  EXPECT_EQ(counts.of(Mixer::recurrence).matrices, 8 * (32 + 20 + 4) + 20 * 8);
  EXPECT_EQ(counts.of(Mixer::recurrence).rows, 32 * 5 + 20 + 3 * 4);
}

// The projection in has three rows for each element of a layer's rows, and the one out one.
TEST(ParameterCounts, OfShortConvolutionsByHand) {
  Transformer model = tiny();
  model.convolution = ShortConvolution{5, false};
  set_layers(model,
             {{}, {{}, {}, false, Mixer::convolution, true}, {{}, {}, false, Mixer::convolution, false}});
  ParameterCounts counts = parameter_counts(model);
  EXPECT_EQ(counts.of(Mixer::convolution).matrices, 24 * 8 + 8 * 8);
  EXPECT_EQ(counts.of(Mixer::convolution).rows, 8 * 5);
  EXPECT_EQ(counts.layer({Mixer::convolution, Mlp::dense}), 256 + 40 + 240 + 16);
  EXPECT_EQ(counts.layer({Mixer::convolution, Mlp::none}), 256 + 40 + 8);
  EXPECT_EQ(counts.total, 88 + (576 + 240 + 16) + (256 + 40 + 240 + 16) + (256 + 40 + 8) + 8 + 88);
  EXPECT_EQ(counts.multiplied, 576 + 2 * 256 + 2 * 240);
  model.convolution->bias = true;  // of the projection in, of the convolution, and of the projection out
  counts = parameter_counts(model);
  EXPECT_EQ(counts.of(Mixer::convolution).matrices, 24 * 8 + 8 * 8);
  EXPECT_EQ(counts.of(Mixer::convolution).rows, 8 * 5 + 24 + 8 + 8);
}

TEST(ParameterCounts, ATiedHeadIsMetButNotCountedTwice) {
  Transformer model = tiny();
  const ParameterCounts untied = parameter_counts(model);
  model.tied_embeddings = true;
  const ParameterCounts tied = parameter_counts(model);
  EXPECT_EQ(tied.head, 0);
  EXPECT_EQ(tied.total, untied.total - 88);
  EXPECT_EQ(tied.active, untied.active);
}

TEST(ParameterCounts, ATokenMeetsTopKOfTheExperts) {
  Transformer model = tiny();
  model.experts = Experts{5, 2, 7};
  const ParameterCounts counts = parameter_counts(model);
  EXPECT_EQ(counts.mlp, 0);
  EXPECT_EQ(counts.experts, 5 * 3 * 8 * 7);
  EXPECT_EQ(counts.router, 8 * 5);
  EXPECT_EQ(counts.total - counts.active, 88 + 3 * (3 * 3 * 8 * 7));
}

// Of three layers of which the first one has no experts.
TEST(ParameterCounts, ATokenMeetsSharedExpertsAndDenseLayers) {
  Transformer model = tiny();
  model.experts = Experts{5, 2, 7, 4};
  set_layers(model, {{{}, {}, true}, {}, {}});
  const ParameterCounts counts = parameter_counts(model);
  EXPECT_EQ(counts.mlp, 3 * 8 * 10);
  EXPECT_EQ(counts.shared, 3 * 8 * 4);
  const LayerParts dense{Mixer::attention, Mlp::dense}, experts{Mixer::attention, Mlp::experts};
  EXPECT_EQ(counts.layer(dense), counts.of(Mixer::attention).matrices + counts.of(Mixer::attention).rows +
                                     2 * counts.norms + counts.mlp);
  EXPECT_EQ(counts.layer(experts), counts.of(Mixer::attention).matrices + counts.of(Mixer::attention).rows +
                                       2 * counts.norms + counts.experts + counts.shared + counts.router);
  EXPECT_EQ(counts.total, counts.embedding + counts.head + counts.final_norm + counts.layer(dense) +
                              2 * counts.layer(experts));
  EXPECT_EQ(counts.total - counts.active, 88 + 2 * (3 * 3 * 8 * 7));
}

TEST(ValidateModel, TakesWhatIsSound) {
  EXPECT_NO_THROW(validate_model(tiny()));
  Transformer experts = tiny();
  experts.experts = Experts{4, 4, 1};
  experts.intermediate = 0;  // unused
  EXPECT_NO_THROW(validate_model(experts));
}

TEST(ValidateModel, NamesAllFaultsAtOnce) {
  Transformer model = tiny();
  model.hidden = 0, model.layers = -1, model.kv_heads = 3, model.kinds.front().window = 0,
  model.experts = Experts{4, 5, 1};
  EXPECT_THAT(message_of([&] { validate_model(model); }),
              AllOf(HasSubstr("model 'tiny': hidden=0 must be at least 1"), HasSubstr("layers=-1"),
                    HasSubstr("kv_heads=3 does not divide q_heads=4; use kv_heads in {1, 2, 4}"),
                    HasSubstr("window=0"),
                    HasSubstr("experts.top_k=5 must be at least 1 and at most "
                              "experts.count=4")));
}

TEST(ValidateModel, NamesFaultsOfParts) {
  Transformer model = tiny();
  model.kinds = {{4, {}, false, Mixer::none, true},
                 {{}, {}, true, Mixer::recurrence, false},
                 {{}, {}, false, Mixer::none, false}};
  model.order = {0, 1, 2};
  EXPECT_THAT(message_of([&] { validate_model(model); }),
              AllOf(HasSubstr("kinds[0].window and chunk are of attention"),
                    HasSubstr("kinds[1] has a recurrence, and the model's recurrence is unset"),
                    HasSubstr("kinds[1].dense is said of an MLP that this kind does not have"),
                    HasSubstr("kinds[2] has neither mixer nor MLP"), HasSubstr("no layer has attention")));
  model.kinds = {{}, {{}, {}, false, Mixer::recurrence, true}}, model.order = {0, 1, 0};
  model.recurrence = Recurrence{RecurrenceRule::delta, 3, 4, 0, 5, 0, false};
  EXPECT_THAT(message_of([&] { validate_model(model); }),
              AllOf(HasSubstr("recurrence.key_heads=3 does not divide recurrence.value_heads=4; use one of "
                              "{1, 2, 4}"),
                    HasSubstr("recurrence.key_dim=0"), HasSubstr("recurrence.convolution=0")));
}

TEST(ValidateModel, NamesFaultsOfConvolutions) {
  Transformer model = tiny();
  const LayerKind convolves{{}, {}, false, Mixer::convolution, true};
  EXPECT_EQ(name(convolves.mixer), "convolution");
  model.kinds = {{}, convolves}, model.order = {0, 1, 0};
  EXPECT_THAT(message_of([&] { validate_model(model); }),
              HasSubstr("kinds[1] has a convolution, and the model's convolution is unset; set its sizes"));
  model.convolution = ShortConvolution{};
  EXPECT_NO_THROW(validate_model(model));
  Transformer huge = model;
  huge.hidden = std::int64_t{1} << 30;
  EXPECT_THAT(message_of([&] { validate_model(huge); }), HasSubstr("parameters are more than"));
  model.convolution->taps = 0;
  EXPECT_THAT(message_of([&] { validate_model(model); }), HasSubstr("convolution.taps=0 must be at least 1"));
  model.kinds = {{}}, model.order.clear();
  EXPECT_THAT(message_of([&] { validate_model(model); }),
              HasSubstr("convolution is set, and no layer has one; leave it out"));
  model.kinds = {convolves};
  EXPECT_THAT(message_of([&] { validate_model(model); }), HasSubstr("no layer has attention"));
}

TEST(ValidateModel, NamesFaultsOfKinds) {
  Transformer model = tiny();
  model.kinds = {{4, {}}, {{}, 0}, {4, {}}, {{}, {}, true}}, model.order = {0, 4};
  EXPECT_THAT(message_of([&] { validate_model(model); }),
              AllOf(HasSubstr("kinds[1].chunk=0 must be at least 1"),
                    HasSubstr("kinds[3].dense sets layers apart from those with experts"),
                    HasSubstr("kinds[0] and kinds[2] are equal; name a kind once"),
                    HasSubstr("order has 2 entries, one is due for each of layers=3"),
                    HasSubstr("order has kind 4, which is not one of 4; use 0 to 3")));
  model.kinds.clear(), model.order.clear();
  EXPECT_THAT(message_of([&] { validate_model(model); }), HasSubstr("kinds is empty"));
}

TEST(SetLayers, NumbersKindsAsTheyAppear) {
  Transformer model = tiny();
  const LayerKind full, window{4, {}};
  set_layers(model, {window, full, window});
  EXPECT_EQ(model.kinds, (std::vector<LayerKind>{window, full}));
  EXPECT_EQ(model.order, (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(layers_of_kinds(model), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(layers_of_kinds(model, 1, 1), (std::vector<std::int64_t>{0, 1}));
  set_layers(model, {window, window, window});
  EXPECT_TRUE(model.order.empty());
  EXPECT_EQ(layers_of_kinds(model), (std::vector<std::int64_t>{3}));
}

TEST(FirstAttention, IsTheFirstKindThatHasItOrTheLayerAlone) {
  Transformer model = tiny();
  LayerKind recurrent, window{4, {}};
  recurrent.mixer = Mixer::recurrence;
  model.kinds = {recurrent, window, {}};
  EXPECT_EQ(&first_attention(model), &model.kinds[1]);
  model.kinds = {recurrent};
  EXPECT_EQ(&first_attention(model), &model.kinds.front());
}

TEST(ValidateModel, RefusesWhatCannotBeCounted) {
  Transformer model = tiny();
  model.hidden = model.vocab = std::int64_t{1} << 31;
  EXPECT_THAT(message_of([&] { validate_model(model); }), HasSubstr("parameters are more than"));
  model.vocab += 1;
  EXPECT_THAT(message_of([&] { validate_model(model); }), HasSubstr("vocab=2147483649"));
}

TEST(ValidateModel, RefusesACapThatIsNone) {
  for (const double cap : {-1.0, std::numeric_limits<double>::infinity()}) {
    Transformer model = tiny();
    model.softcap = cap;
    EXPECT_THAT(message_of([&] { validate_model(model); }),
                HasSubstr("must be a finite number above 0, or 0"));
  }
}

TEST(ValidateModel, RefusesLatentAttentionThatCannotBe) {
  Transformer model = tiny();
  model.kv_heads = model.q_heads, model.latent = Latent{0, 8, 1, 4};
  validate_model(model);
  model.latent = Latent{-1, 0, model.head_dim + 1, 0};
  model.qk_norm = true, model.kv_heads = 1;
  const std::string said = message_of([&] { validate_model(model); });
  for (const char* field :
       {"latent.q_rank=-1", "latent.kv_rank=0", "latent.v_head_dim=0", "latent.rope_dim=",
        "kv_heads=1 must be q_heads=", "qkv_bias, out_bias, qk_norm and gated_attention must be false"})
    EXPECT_THAT(said, HasSubstr(field));
}

TEST(HashOfAModel, EveryFieldCounts) {
  std::vector<Transformer> models(15, tiny());
  models[1].name = "other", models[2].hidden = 9, models[3].layers = 4, models[4].q_heads = 8;
  models[5].kv_heads = 4, models[6].head_dim = 8, models[7].intermediate = 12, models[8].vocab = 12;
  models[9].max_seq_len = 1, models[10].tied_embeddings = true, models[11].qkv_bias = true;
  models[12].qk_norm = true, models[13].kinds.front().window = 0, models[14].experts = Experts{};
  models.push_back(tiny()), models.back().kinds.front().chunk = 0;
  models.push_back(tiny()), models.back().sinks = true;
  models.push_back(tiny()), models.back().qk_norm_of_all_heads = true;
  models.push_back(tiny()), models.back().softcap = 30;
  models.push_back(tiny()), models.back().prediction_layers = 1;
  models.push_back(tiny()), models.back().qk_norm_behind_rotary = true;
  models.push_back(tiny()), models.back().parallel_blocks = true;
  models.push_back(tiny()), models.back().out_bias = true;
  models.push_back(tiny()), models.back().kinds.front().rotary = false;
  models.push_back(tiny()), models.back().convolution = ShortConvolution{3, false};
  models.push_back(tiny()), models.back().convolution = ShortConvolution{3, true};
  models.push_back(tiny()), models.back().convolution = ShortConvolution{4, false};
  models.push_back(tiny()), models.back().numerics.activation_limit = 7;
  models.push_back(tiny()), models.back().numerics.up_offset = 1;
  models.push_back(tiny()), models.back().numerics.weighs_expert_inputs = true;
  models.push_back(tiny()), models.back().numerics.interleaved_rotary = true;
  models.push_back(tiny()), models.back().numerics.score_scale = 2;
  models.push_back(tiny()), models.back().numerics.norm_centered = true;
  models.push_back(tiny()), models.back().numerics.logit_scale = 2;
  RotaryFrequencies yarn{.scaling = RotaryScaling::yarn, .factor = 2}, pairs = yarn, larger = yarn;
  pairs.whole_pairs = false, larger.magnitude = 2;
  for (const RotaryFrequencies& rotary :
       {yarn, pairs, larger, RotaryFrequencies{.scaling = RotaryScaling::linear, .factor = 2},
        RotaryFrequencies{.scaling = RotaryScaling::llama3, .factor = 2}, RotaryFrequencies{.theta = 2}}) {
    models.push_back(tiny()), models.back().numerics.rotary = rotary;
    models.push_back(tiny()), models.back().numerics.window_rotary = rotary;
  }
  for (const QueryTemperature& temperature : {QueryTemperature{1, 8192}, QueryTemperature{0, 1}})
    models.push_back(tiny()), models.back().numerics.temperature = temperature;
  for (const Experts& experts :
       {Experts{0, 0, 0, 1, true, false}, Experts{0, 0, 0, 1, false, true},
        Experts{0, 0, 0, 1, false, false, true}, Experts{0, 0, 0, 1, false, false, false, true}})
    models.push_back(tiny()), models.back().experts = experts;
  for (const Latent& latent :
       {Latent{}, Latent{1, 0, 0, 0}, Latent{0, 1, 0, 0}, Latent{0, 0, 1, 0}, Latent{0, 0, 0, 1}})
    models.push_back(tiny()), models.back().latent = latent;
  models.push_back(tiny()), set_layers(models.back(), {{{}, {}}, {4, {}}, {{}, {}}});
  models.push_back(tiny()), set_layers(models.back(), {{{}, {}}, {4, {}}, {4, {}}});
  for (const Experts& experts : {Experts{1, 0, 0}, Experts{0, 1, 0}, Experts{0, 0, 1}}) {
    models.push_back(tiny());
    models.back().experts = experts;
  }
  std::set<Digest> digests;
  for (const Transformer& model : models) {
    Hasher hasher;
    digests.insert(hash(hasher, model).digest());
  }
  EXPECT_EQ(digests.size(), models.size());
}

}  // namespace
}  // namespace cp
