#include "sim/planner/models/read_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/cost/presets/embedded.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::cp::testing::message_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

// The fields of a small llama; null leaves one out, as it does in transformers.
std::string config(const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> fields = {
      {"model_type", "\"llama\""},       {"hidden_size", "64"},        {"num_hidden_layers", "4"},
      {"num_attention_heads", "8"},      {"num_key_value_heads", "2"}, {"head_dim", "8"},
      {"intermediate_size", "128"},      {"vocab_size", "1000"},       {"tie_word_embeddings", "false"},
      {"max_position_embeddings", "512"}};
  for (const auto& [key, value] : changes) fields[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : fields) {
    text += str(text.size() > 1 ? ",\n" : "\n", "  \"", key, "\": ", value);
  }
  return text + "\n}\n";
}

ReadModel read(const std::map<std::string, std::string>& changes) {
  return read_model(config(changes), "config.json", "small");
}
std::string config_error(const std::map<std::string, std::string>& changes) {
  return message_of([&] { read(changes); });
}

// ---- presets ----

TEST(ModelPresets, HaveAsManyParametersAsPublished) {
  const std::map<std::string, std::int64_t> published = {
      {"llama-2-7b", 6'738'415'616},
      {"llama-3.1-405b", 405'853'388'800},
      {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.1-8b", 8'030'261'248},
      {"mistral-7b", 7'248'023'552},
      {"mixtral-8x7b", 46'702'792'704},
      {"qwen2.5-72b", 72'706'203'648},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-32b", 32'762'123'264},
      {"qwen3-235b-a22b", 235'093'634'560},
      {"llama-3.3-70b", 70'553'706'496},
      {"mixtral-8x22b", 140'620'634'112},
      {"qwen2.5-32b", 32'763'876'352},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"phi-4", 14'659'507'200},
      {"smollm3-3b", 3'075'098'624},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672},
      {"glm-4.5", 352'800'000'000},
      {"glm-4.5-air", 106'850'000'000},
      {"llama-4-scout", 107'769'861'120},
      {"llama-4-maverick", 400'711'848'960},
      {"deepseek-v3", 671'026'419'200},
      {"deepseek-r1", 671'026'419'200},
      {"deepseek-v2-lite", 15'706'484'224},
      {"kimi-k2", 1'026'408'235'864},
      // Of the language models: the published 12,187,325,040 and 27,432,406,640 have 421,290,864 and
      // 423,060,336 parameters of vision, which differ by the projection to the wider rows, 1,152 x (5,376 -
      // 3,840).
      {"gemma-3-12b", 11'766'034'176},
      {"gemma-3-27b", 27'009'346'304},
      {"mistral-small-3.1-24b", 23'572'403'200},
      {"command-r7b", 8'028'033'024},
      {"olmo-2-13b", 13'716'198'400},
      {"olmo-2-32b", 32'234'279'936},
      // Of 81,324,862,720 the layer that predicts a further token has 1,650,471,424.
      {"qwen3-next-80b-a3b", 79'674'391'296},
      {"lfm2-2.6b", 2'569'272'320},
      {"lfm2-8b-a1b", 8'339'929'856},
      {"nemotron-3-nano-30b-a3b", 31'577'937'344},
      {"nemotron-4-340b", 341'000'000'000},
      // Two digits.
      {"nemotron-h-8b", 8'100'000'000},
      {"nemotron-h-47b", 47'000'000'000},
      {"nemotron-h-56b", 56'000'000'000},
      {"llama-3.1-nemotron-70b", 70'553'706'496}};
  std::vector<std::string> names;
  for (const auto& [name, parameters] : published) {
    names.push_back(name);
    const std::int64_t total = parameter_counts(find_model(name).model).total;
    // GLM-4.5's are rounded. DeepSeek-V3 and Kimi K2 have a number for each expert by which the router
    // chooses: 58 x 256. Nemotron-4 has biases of its norms; its total is rounded.
    const bool without_some = name.starts_with("glm") || name == "deepseek-v3" || name == "deepseek-r1" ||
                              name == "kimi-k2" || name == "nemotron-4-340b";
    if (name.starts_with("nemotron-h")) {
      EXPECT_NEAR(static_cast<double>(total) / static_cast<double>(parameters), 1, 1e-2) << name;
    } else if (without_some) {
      EXPECT_NEAR(static_cast<double>(total) / static_cast<double>(parameters), 1, 1e-3) << name;
    } else {
      EXPECT_EQ(total, parameters) << name;
    }
  }
  EXPECT_THAT(model_names(), ::testing::UnorderedElementsAreArray(names));
}

TEST(ModelPresets, AssumeNothingAndSayTheirSource) {
  for (const std::string& name : model_names()) {
    const ReadModel read = find_model(name);
    EXPECT_EQ(read.model.name, name);
    const bool leaves_out = name.starts_with("glm") || name == "deepseek-v3" || name == "deepseek-r1" ||
                            name.starts_with("qwen3-next") || name == "nemotron-4-340b";
    EXPECT_EQ(read.assumptions.empty(), !leaves_out) << name << ": " << join(read.assumptions, "; ");
    EXPECT_THAT(read.warnings, IsEmpty()) << name;
    EXPECT_THAT(read.source, HasSubstr("huggingface.co")) << name;
    EXPECT_THAT(read.source, HasSubstr(read.repository)) << name;
    EXPECT_THAT(read.repository, HasSubstr("/")) << name;
    EXPECT_TRUE(read.dtype.has_value()) << name;
    EXPECT_GT(read.model.max_seq_len, 0) << name;
    const bool of_three = name == "llama-4-maverick" || name == "lfm2-8b-a1b" ||
                          name.starts_with("nemotron-h") || name.starts_with("nemotron-3");
    const bool alike = !leaves_out && !of_three && !name.starts_with("llama-4") &&
                       !name.starts_with("gpt-oss") && name != "smollm3-3b" && name != "deepseek-v2-lite" &&
                       name != "kimi-k2" && name != "lfm2-2.6b" && name != "command-r7b" &&
                       !name.starts_with("gemma");
    const bool of_one_kind = alike || name == "nemotron-4-340b";
    EXPECT_EQ(read.model.kinds.size(), of_one_kind ? 1U : of_three ? 3U : 2U) << name;
  }
  EXPECT_THAT(layers_of_kinds(find_model("gpt-oss-20b").model), ElementsAre(12, 12));
  EXPECT_EQ(find_model("gpt-oss-20b").model.kinds, (std::vector<LayerKind>{{128, {}}, {}}));
  EXPECT_TRUE(find_model("qwen2.5-7b").model.qkv_bias);
  EXPECT_TRUE(find_model("qwen3-32b").model.qk_norm);
  EXPECT_FALSE(find_model("qwen3-32b").model.qk_norm_of_all_heads);
  EXPECT_TRUE(find_model("olmo-2-13b").model.qk_norm_of_all_heads);
  EXPECT_TRUE(find_model("gemma-3-27b").model.norms_behind);
  EXPECT_THAT(layers_of_kinds(find_model("gemma-3-27b").model), ElementsAre(52, 10));
  EXPECT_EQ(find_model("mixtral-8x7b").model.experts, (Experts{8, 2, 14336}));
  EXPECT_EQ(find_model("qwen3-235b-a22b").model.experts, (Experts{128, 8, 1536}));
  EXPECT_EQ(find_model("llama-3.1-8b").model.numerics.rotary.scaling, RotaryScaling::llama3);
}

TEST(ModelPresets, HaveLatentAttention) {
  EXPECT_EQ(find_model("deepseek-v3").model.latent, (Latent{1536, 512, 64, 128}));
  EXPECT_EQ(find_model("deepseek-v2-lite").model.latent, (Latent{0, 512, 64, 128}));
  const Transformer kimi = find_model("kimi-k2").model;
  EXPECT_EQ(kimi.q_heads, 64);
  EXPECT_EQ(kimi.kv_heads, 64);
  EXPECT_EQ(kimi.head_dim, 192);
  EXPECT_EQ(kimi.latent, (Latent{1536, 512, 64, 128}));
}

TEST(ModelPresets, AreFoundInAnyCaseAndWithTheirOrganisation) {
  EXPECT_EQ(find_model("meta-llama/Llama-3.1-8B").model, find_model("llama-3.1-8b").model);
  EXPECT_EQ(load_model("LLAMA-3.1-8B").model.name, "llama-3.1-8b");
}

TEST(ModelPresets, NearMissesAreAnsweredWithTheNearestOne) {
  EXPECT_THAT(message_of([] { load_model("llama-3.1-8x"); }),
              AllOf(HasSubstr("unknown model 'llama-3.1-8x'; the nearest one is 'llama-3.1-8b'"),
                    HasSubstr("mixtral-8x7b"), HasSubstr("the path of a config.json")));
}

// ---- fields ----

TEST(ReadModel, TakesEveryField) {
  const ReadModel read = sim::read_model(
      config({{"torch_dtype", "\"float16\""}, {"tie_word_embeddings", "true"}, {"unknown_key", "[1, {}]"}}),
      "f", "n");
  EXPECT_THAT(read.assumptions, ElementsAre("1 key of the config is not read: unknown_key"));
  EXPECT_THAT(read.warnings, IsEmpty());
  Transformer wanted;
  wanted.name = "n";
  wanted.hidden = 64, wanted.layers = 4, wanted.q_heads = 8, wanted.kv_heads = 2, wanted.head_dim = 8;
  wanted.intermediate = 128, wanted.vocab = 1000, wanted.max_seq_len = 512, wanted.tied_embeddings = true;
  EXPECT_EQ(read.model, wanted);
  EXPECT_EQ(read.dtype, DType::f16);
}

TEST(ReadModel, MissingFieldsThatCanBeAssumedAreMarked) {
  const ReadModel r = read({{"num_key_value_heads", "null"},
                            {"head_dim", "null"},
                            {"tie_word_embeddings", "null"},
                            {"max_position_embeddings", "null"}});
  EXPECT_EQ(r.model.kv_heads, 8);
  EXPECT_EQ(r.model.head_dim, 8);
  EXPECT_EQ(r.model.max_seq_len, 0);
  EXPECT_THAT(
      r.assumptions,
      ElementsAre("max_position_embeddings is missing, so a sequence may have any length",
                  "num_key_value_heads is missing, so 8 is taken, as num_attention_heads (no grouping)",
                  "head_dim is missing, so 8 is taken, hidden_size / num_attention_heads",
                  "tie_word_embeddings is missing, so false is taken, as usual in llama"));
}

TEST(ReadModel, MissingFieldsThatMustBeThereAreAllNamed) {
  EXPECT_EQ(message_of([] { read_model("{\"model_type\": \"llama\"}", "a/config.json", "n"); }),
            "a/config.json: hidden_size, the width of what layers hand on, is missing; add it\n"
            "a/config.json: num_hidden_layers, how many layers there are, is missing; add it\n"
            "a/config.json: vocab_size, how many tokens there are, is missing; add it\n"
            "a/config.json: num_attention_heads, how many heads queries have, is missing; add it\n"
            "a/config.json: intermediate_size, the width inside the MLP, is missing; add it");
}

TEST(ReadModel, FamiliesDifferInWhatTheyDoNotSay) {
  EXPECT_TRUE(read({{"model_type", "\"qwen2\""}}).model.qkv_bias);
  EXPECT_TRUE(read({{"model_type", "\"qwen3\""}}).model.qk_norm);
  EXPECT_EQ(read({{"model_type", "\"qwen3\""}, {"head_dim", "null"}}).model.head_dim, 128);
  const ReadModel mistral = read({{"model_type", "\"mistral\""}});
  EXPECT_EQ(mistral.model.kinds.front().window, 4096);
  EXPECT_THAT(mistral.assumptions,
              ElementsAre("sliding_window is missing, so 4096 is taken, the default of mistral"));
  EXPECT_EQ(read({{"model_type", "\"mistral\""}, {"sliding_window", "null"}}).model.kinds,
            std::vector<LayerKind>(1));
  EXPECT_EQ(read({{"model_type", "\"mixtral\""}, {"num_local_experts", "8"}}).model.experts,
            (Experts{8, 2, 128}));
  EXPECT_THAT(
      read({{"model_type", "\"olmo7\""}}).warnings,
      ElementsAre(HasSubstr("model_type \"olmo7\" is not known, so its layers are taken as llama's")));
  EXPECT_THAT(read({{"model_type", "null"}}).warnings, ElementsAre(HasSubstr("model_type is missing")));
}

// ---- keys that nothing is read from ----

TEST(ReadModelKeys, AMisspeltOneIsAWarningWithWhatIsAssumedInstead) {
  const ReadModel slip = read({{"num_key_value_heads", "null"}, {"num_key_value_head", "2"}});
  EXPECT_EQ(slip.model.kv_heads, 8);
  EXPECT_THAT(
      slip.warnings,
      ElementsAre("num_key_value_head is not read; did you mean num_key_value_heads? "
                  "num_key_value_heads is missing, so 8 is taken, as num_attention_heads (no grouping)"));
  EXPECT_THAT(slip.assumptions, ElementsAre(HasSubstr("num_key_value_heads is missing")));
  EXPECT_THAT(
      read({{"qk_nrom", "true"}}).warnings,
      ElementsAre("qk_nrom is not read; did you mean qk_norm? qk_norm is missing, and the model is taken "
                  "without it"));
  for (const auto& [written, meant] :
       std::map<std::string, std::string>{{"window_size", "sliding_window"},
                                          {"slidingWindow", "sliding_window"},
                                          {"num_expert", "num_experts"},
                                          {"atention_bias", "attention_bias"}}) {
    EXPECT_THAT(read({{written, "16"}}).warnings, ElementsAre(HasSubstr("did you mean " + meant + "?")))
        << written;
  }
}

TEST(ReadModelKeys, OthersAreCountedAndNamed) {
  const ReadModel read = sim::read_model(
      config(
          {{"hidden_dropout_rate", "0"}, {"final_logits_capped", "30"}, {"head_dims", "9"}, {"x", "null"}}),
      "f", "n");
  EXPECT_THAT(read.warnings, IsEmpty()) << "head_dim is there";
  EXPECT_THAT(read.assumptions,
              ElementsAre("3 keys of the config are not read: final_logits_capped, head_dims, "
                          "hidden_dropout_rate"));
  std::map<std::string, std::string> many;
  for (int i = 0; i < 20; ++i) many["zz" + std::to_string(100 + i)] = "1";
  EXPECT_THAT(sim::read_model(config(many), "f", "n").assumptions,
              ElementsAre(AllOf(HasSubstr("20 keys"), HasSubstr("zz111 and 8 more"))));
}

TEST(ReadModelKeys, IdleOnesAreNotMentioned) {
  const ReadModel read = sim::read_model(config({{"transformers_version", "\"4.44\""},
                                                 {"bos_token_id", "1"},
                                                 {"eos_token_id", "[1, 2]"},
                                                 {"rope_theta", "1e6"},
                                                 {"_name_or_path", "\"x\""},
                                                 {"kv_lora_rank", "0"},
                                                 {"initializer_range", "0.02"}}),
                                         "f", "n");
  EXPECT_THAT(read.assumptions, IsEmpty());
  EXPECT_THAT(read.warnings, IsEmpty());
}

// The windows of the layers; 0: none.
std::vector<std::int64_t> windows_of(const std::map<std::string, std::string>& fields) {
  const Transformer model = read(fields).model;
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    windows.push_back(model.kinds[idx(model.kind_of(layer))].window.value_or(0));
  return windows;
}

TEST(ReadModel, WindowsCountOnlyWhereTheyAreUsed) {
  EXPECT_THAT(windows_of({{"sliding_window", "32"}}), ElementsAre(32, 32, 32, 32));
  const auto with = [&](std::map<std::string, std::string> fields) {
    fields.insert({{"model_type", "\"qwen2\""}, {"sliding_window", "32"}, {"max_window_layers", "0"}});
    return windows_of(fields);
  };
  EXPECT_THAT(with({}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(with({{"use_sliding_window", "true"}}), ElementsAre(32, 32, 32, 32));
  EXPECT_THAT(with({{"use_sliding_window", "true"}, {"max_window_layers", "4"}}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(with({{"use_sliding_window", "true"}, {"max_window_layers", "3"}}), ElementsAre(0, 0, 0, 32));
}

// The sizes are those of google/gemma-2-9b on huggingface.co, which has 9,241,705,984 parameters.
TEST(ReadModel, ScoresMayBeCappedAndHaveSinks) {
  const std::map<std::string, std::string> gemma = {
      {"model_type", "\"gemma2\""},       {"hidden_size", "3584"},
      {"num_hidden_layers", "42"},        {"num_attention_heads", "16"},
      {"num_key_value_heads", "8"},       {"head_dim", "256"},
      {"intermediate_size", "14336"},     {"vocab_size", "256000"},
      {"tie_word_embeddings", "true"},    {"sliding_window", "4096"},
      {"final_logit_softcapping", "30.0"}};
  const ReadModel missing = read(gemma);
  EXPECT_EQ(parameter_counts(missing.model).total, 9'241'705'984);
  EXPECT_EQ(missing.model.softcap, 50);
  EXPECT_FALSE(missing.model.sinks);
  EXPECT_THAT(missing.warnings, IsEmpty());
  EXPECT_THAT(
      missing.assumptions,
      IsSupersetOf(
          {"attn_logit_softcapping is missing, so 50 is taken, the default of gemma2",
           "scores are capped at 50 in the plans (attn_logit_softcapping), and timed as if they "
           "were not",
           "logits are capped at 30 in the plans (final_logit_softcapping), and timed as if they were not"}));
  EXPECT_EQ(missing.model.numerics.logit_softcap, 30);
  EXPECT_TRUE(missing.model.numerics.norm_unit_offset);
  EXPECT_EQ(missing.model.numerics.embedding_scale, std::sqrt(3584.0));
  EXPECT_EQ(missing.model.numerics.activation, ActivationFunction::gelu_tanh);
  EXPECT_EQ(read({{"attn_logit_softcapping", "20.5"}}).model.softcap, 20.5);
  EXPECT_EQ(read({{"model_type", "\"gemma2\""}, {"attn_logit_softcapping", "null"}}).model.softcap, 0);
  EXPECT_THAT(config_error({{"attn_logit_softcapping", "-1"}}), HasSubstr("must be a number, at least 0"));
  EXPECT_THAT(config_error({{"attn_logit_softcapping", "true"}}), HasSubstr("must be a number, at least 0"));
  EXPECT_TRUE(find_model("gpt-oss-20b").model.sinks);
}

// What results depend on, and no time.
TEST(ReadModel, NumericsAreThoseOfTheConfigOrOfItsFamily) {
  const auto numerics = [](std::map<std::string, std::string> fields) { return read(fields).model.numerics; };
  const Numerics llama =
      numerics({{"rms_norm_eps", "1e-5"}, {"rope_theta", "5e5"}, {"hidden_act", "\"silu\""}});
  EXPECT_EQ(llama.norm_eps, 1e-5);
  EXPECT_EQ(llama.rotary.theta, 5e5);
  EXPECT_EQ(llama.activation, ActivationFunction::silu);
  const Numerics of_five =
      numerics({{"rope_parameters", R"({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
      "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.5})"}});
  EXPECT_EQ(of_five.rotary.theta, 5e5);
  EXPECT_EQ(of_five.rotary.factor, 8);
  EXPECT_EQ(of_five.rotary.original, 4096);
  EXPECT_EQ(of_five.rotary_share, 0.5);
  EXPECT_EQ(numerics({}), Numerics{});
  EXPECT_EQ(numerics({{"partial_rotary_factor", "0.75"}}).rotary_share, 0.75);
  EXPECT_EQ(numerics({{"partial_rotary_factor", "1.5"}}).rotary_share, 1);
  for (const auto& [preset, share] : {std::pair{"glm-4.5", 0.5},
                                      {"qwen3-next-80b-a3b", 0.25},
                                      {"nemotron-h-8b", 0.0},
                                      {"llama-3.1-8b", 1.0}})
    EXPECT_EQ(find_model(preset).model.numerics.rotary_share, share) << preset;
  EXPECT_TRUE(find_model("qwen3-next-80b-a3b").model.numerics.norm_unit_offset);
  EXPECT_EQ(numerics({{"hidden_act", "\"relu2\""}}).activation, ActivationFunction::relu2);
  EXPECT_THAT(read({{"hidden_act", "\"mish\""}}).assumptions,
              Contains("hidden_act \"mish\" is not known: plans have silu in its place"));
  const Numerics routed = numerics({{"num_experts", "8"},
                                    {"num_experts_per_tok", "2"},
                                    {"scoring_func", "\"sigmoid\""},
                                    {"norm_topk_prob", "false"},
                                    {"routed_scaling_factor", "2.5"},
                                    {"n_group", "4"},
                                    {"topk_group", "2"}});
  EXPECT_EQ(routed.router, (RouterRule{true, 4, 2, false, 2.5, 1}));
  const RotaryFrequencies scaled = find_model("llama-3.1-8b").model.numerics.rotary;
  EXPECT_EQ(scaled.factor, 8);
  EXPECT_EQ(scaled.original, 8192);
  EXPECT_EQ(find_model("llama-4-scout").model.numerics.rotary.factor, 16);
  EXPECT_TRUE(find_model("deepseek-v3").model.numerics.router.sigmoid);
  EXPECT_TRUE(find_model("deepseek-v3").model.numerics.interleaved_rotary);
  EXPECT_EQ(find_model("nemotron-4-340b").model.numerics.activation, ActivationFunction::relu2);
}

// Of rotary positions: what each of the published configs says, in the words of either version.
TEST(ReadModel, FrequenciesAreScaledAsConfigsSay) {
  const auto of = [](const char* preset) { return find_model(preset).model.numerics; };
  const double ln40 = std::log(40), yarn32 = 0.1 * std::log(32) + 1;
  const RotaryFrequencies deepseek{
      .scaling = RotaryScaling::yarn, .factor = 40, .high = 32, .original = 4096};
  EXPECT_EQ(of("deepseek-v3").rotary, deepseek);
  EXPECT_EQ(of("deepseek-r1").rotary, deepseek);
  EXPECT_DOUBLE_EQ(of("deepseek-v3").score_scale, std::pow(0.1 * ln40 + 1, 2));
  EXPECT_DOUBLE_EQ(of("deepseek-v2-lite").score_scale, std::pow(0.0707 * ln40 + 1, 2));
  EXPECT_EQ(of("kimi-k2").rotary.high, 1);
  EXPECT_DOUBLE_EQ(of("kimi-k2").score_scale, yarn32 * yarn32);
  const RotaryFrequencies gpt_oss = of("gpt-oss-120b").rotary;
  EXPECT_EQ(gpt_oss.scaling, RotaryScaling::yarn);
  EXPECT_FALSE(gpt_oss.whole_pairs);
  EXPECT_DOUBLE_EQ(gpt_oss.magnitude, yarn32);
  EXPECT_EQ(of("gpt-oss-120b").score_scale, 1);
  for (const char* preset : {"llama-3.3-70b", "llama-3.1-nemotron-70b"})
    EXPECT_EQ(of(preset).rotary, of("llama-3.1-70b").rotary) << preset;
  const Numerics gemma = of("gemma-3-27b");
  EXPECT_EQ(gemma.rotary, (RotaryFrequencies{.theta = 1e6, .scaling = RotaryScaling::linear, .factor = 8}));
  EXPECT_EQ(gemma.window_rotary, RotaryFrequencies{});
  EXPECT_DOUBLE_EQ(gemma.score_scale, std::sqrt(128.0 / 168));
  EXPECT_EQ(of("gemma-3-12b").score_scale, 1);
  for (const std::string& preset : model_names()) {
    EXPECT_EQ(find_model(preset).not_computed.empty(), preset != "nemotron-4-340b") << preset;
    const nlohmann::json config = nlohmann::json::parse(config_text(preset));
    EXPECT_TRUE(config.contains("rms_norm_eps") || config.contains("norm_eps") ||
                config.contains("layer_norm_eps") || config.contains("layer_norm_epsilon"))
        << preset;
  }
}

TEST(ReadModel, FrequenciesOfLayersWithAWindowMayBeTheirOwn) {
  const auto numerics = [](std::map<std::string, std::string> fields) {
    fields.insert({"sliding_window", "4"});
    fields.insert({"layer_types", R"(["sliding_attention", "full_attention", "sliding_attention",
                                      "full_attention"])"});
    return read(fields).model.numerics;
  };
  EXPECT_EQ(numerics({}).window_rotary, std::nullopt);
  // Of a family, of transformers 4 and of transformers 5.
  const Numerics gemma = numerics({{"model_type", "\"gemma3_text\""}});
  EXPECT_EQ(gemma.rotary.theta, 1e6);
  EXPECT_EQ(gemma.window_rotary, RotaryFrequencies{});
  EXPECT_EQ(gemma.score_scale, std::sqrt(8.0 / 256));
  const Numerics four = numerics(
      {{"rope_local_base_freq", "5e3"}, {"rope_scaling", R"({"rope_type": "linear", "factor": 2.0})"}});
  EXPECT_EQ(four.rotary.scaling, RotaryScaling::linear);
  EXPECT_EQ(four.window_rotary, (RotaryFrequencies{.theta = 5e3}));
  const Numerics five = numerics({{"rope_parameters", R"({
      "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 2e4, "attention_factor": 1.5},
      "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}})"}});
  EXPECT_EQ(five.rotary, (RotaryFrequencies{.theta = 2e4,
                                            .scaling = RotaryScaling::yarn,
                                            .factor = 4,
                                            .high = 32,
                                            .original = 512,
                                            .magnitude = 1.5}));
  EXPECT_EQ(five.window_rotary, (RotaryFrequencies{.theta = 3e4}));
  // Where no layer has a window, there is nothing that a second base is of.
  EXPECT_EQ(read({{"rope_local_base_freq", "5e3"}}).model.numerics.window_rotary, std::nullopt);
  EXPECT_EQ(read({{"query_pre_attn_scalar", "32"}}).model.numerics.score_scale, 0.5);
  EXPECT_THAT(config_error({{"query_pre_attn_scalar", "0"}}),
              HasSubstr("query_pre_attn_scalar is 0; scores are divided by its root"));
}

// Plans are answered for, since neither times nor memory hang on it; whoever computes results refuses.
TEST(ReadModel, WhatIsNotComputedIsPlannedAndSaid) {
  const auto refusal = [](const std::string& scaling) {
    const ReadModel model = read({{"rope_scaling", scaling}});
    EXPECT_EQ(model.model.numerics, Numerics{}) << scaling;
    EXPECT_THAT(model.assumptions, Contains(HasSubstr("changes neither times nor memory"))) << scaling;
    return message_of([&] { require_computed(model); });
  };
  EXPECT_THAT(refusal(R"({"type": "dynamic", "factor": 2.0})"),
              AllOf(HasSubstr("the results of small cannot be computed: rope_type \"dynamic\""),
                    HasSubstr("default, linear, llama3 and yarn are"),
                    HasSubstr("the nearest thing that is computed is a config without that")));
  // As long as the lists of factors of Phi-3 with 128k positions.
  std::string factors = "1.0";
  for (int i = 0; i < 1000; ++i) factors += ", 1.0";
  EXPECT_THAT(refusal(str(R"({"type": "longrope", "long_factor": [)", factors, "]}")),
              HasSubstr("\"longrope\""));
  EXPECT_THAT(refusal(R"({"rope_type": 3})"), HasSubstr("rope_type \"3\""));
  EXPECT_THAT(refusal(R"({"rope_type": "yarn", "factor": 0.5})"), HasSubstr("scales nothing"));
  EXPECT_THAT(refusal(R"({"rope_type": "linear"})"), HasSubstr("rope_type \"linear\" has no factor"));
  EXPECT_THAT(message_of([] {
                require_computed(read({{"hidden_act", "\"mish\""}}));
              }),
              HasSubstr("hidden_act \"mish\" is not known"));
  const auto of_flag = [](const char* key) {
    return message_of([&] { require_computed(read({{key, "true"}})); });
  };
  EXPECT_THAT(of_flag("mlp_bias"), HasSubstr("mlp_bias is true: the biases of the MLP are not counted"));
  EXPECT_THAT(of_flag("use_bias"),
              HasSubstr("use_bias is true: the biases of the projections of recurrences"));
  EXPECT_THAT(message_of([] {
                require_computed(read({{"model_type", "\"olmo7\""}}));
              }),
              HasSubstr("cannot be computed: model_type \"olmo7\" is not known"));
  for (const char* key : {"clip_qkv", "alibi"}) {
    const auto of = [&](const char* value) { return read({{key, value}}).not_computed; };
    EXPECT_THAT(of("8.0"), ElementsAre(HasSubstr(" 8.0 is not described"))) << key;
    EXPECT_THAT(of("false"), IsEmpty()) << key;
    EXPECT_THAT(of("null"), IsEmpty()) << key;
  }
  EXPECT_THAT(read({{"attention_dropout", "0.1"}}).assumptions,
              Contains("attention_dropout of the config is 0.1: steps of training have the one that is asked "
                       "for, or none"));
  EXPECT_THAT(read({{"hidden_dropout", "0.1"}}).assumptions,
              Contains("hidden_dropout of the config is 0.1: steps are planned, and trained, without it"));
  const auto of_mamba = [](const char* key, const char* value) {
    return message_of([&] {
      require_computed(read({{"model_type", "\"nemotron_h\""},
                             {"hybrid_override_pattern", "\"M*-M\""},
                             {"mamba_num_heads", "8"},
                             {"mamba_head_dim", "8"},
                             {"ssm_state_size", "8"},
                             {key, value}}));
    });
  };
  for (const char* none : {"null", "[0.0, Infinity]", R"([0.0, {"__float__": "Infinity"}])"})
    EXPECT_EQ(of_mamba("time_step_limit", none), "no error") << none;
  EXPECT_THAT(of_mamba("time_step_limit", "[0.0, 10.0]"),
              HasSubstr("time_step_limit [0.0,10.0] is not described; time steps from 0 to Infinity are"));
  EXPECT_THAT(of_mamba("mamba_hidden_act", "\"relu2\""), HasSubstr("mamba_hidden_act \"relu2\" is not"));
  const ReadModel llama4 = read({{"model_type", "\"llama4_text\""},
                                 {"num_local_experts", "4"},
                                 {"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0})"}});
  EXPECT_EQ(llama4.model.numerics.rotary.magnitude, 1);
  EXPECT_THAT(message_of([&] { require_computed(llama4); }), HasSubstr("before the norms of q and k"));
  EXPECT_NO_THROW(require_computed(read({{"rope_scaling", R"({"type": "default"})"}})));
}

// What the families' models do beside what they share.
TEST(ReadModel, FactsOfFamiliesAreInTheModel) {
  const Transformer gpt_oss = find_model("gpt-oss-20b").model;
  EXPECT_TRUE(gpt_oss.qkv_bias && gpt_oss.out_bias && gpt_oss.experts->biases);
  EXPECT_EQ(gpt_oss.numerics.activation, ActivationFunction::quick_gelu);
  EXPECT_EQ(gpt_oss.numerics.activation_limit, 7);
  EXPECT_EQ(gpt_oss.numerics.up_offset, 1);
  EXPECT_THAT(config_error({{"model_type", "\"gpt_oss\""}, {"swiglu_alpha", "1.5"}}),
              HasSubstr("swiglu_alpha 1.5: what is described is x sigmoid(1.702 x); the nearest thing is "
                        "swiglu_alpha 1.702"));
  const Transformer scout = find_model("llama-4-scout").model,
                    maverick = find_model("llama-4-maverick").model;
  EXPECT_TRUE(scout.qk_norm && scout.qk_norm_behind_rotary && !maverick.qk_norm);
  for (const Transformer& llama4 : {scout, maverick}) {
    EXPECT_TRUE(llama4.numerics.weighs_expert_inputs && llama4.numerics.interleaved_rotary);
    EXPECT_EQ(llama4.numerics.router, (RouterRule{true, 1, 1, false, 1, 1}));
    EXPECT_EQ(llama4.numerics.temperature, (QueryTemperature{0.1, 8192}));
  }
  EXPECT_EQ(read({{"model_type", "\"llama4_text\""}, {"attn_temperature_tuning", "false"}})
                .model.numerics.temperature.scale,
            0);
  EXPECT_TRUE(find_model("qwen3-next-80b-a3b").model.experts->shared_gate);
  EXPECT_FALSE(find_model("glm-4.5").model.out_bias);  // whose attention_bias is of q, k and v alone
  EXPECT_TRUE(read({{"attention_bias", "true"}}).model.out_bias);
  EXPECT_EQ(find_model("deepseek-v3").model.numerics.router, (RouterRule{true, 8, 4, true, 2.5, 1}));
  EXPECT_EQ(find_model("deepseek-v2-lite").model.numerics.router, (RouterRule{false, 1, 1, false, 1, 1}));
}

// Of those whose Transformers' classes have an e_score_correction_bias, or whose topk_method says so.
TEST(ReadModel, RoutersCorrectTheirScores) {
  for (const auto& [preset, corrects] : {std::pair{"deepseek-v3", true},
                                         {"deepseek-r1", true},
                                         {"kimi-k2", true},
                                         {"glm-4.5", true},
                                         {"glm-4.5-air", true},
                                         {"nemotron-3-nano-30b-a3b", true},
                                         {"deepseek-v2-lite", false},
                                         {"mixtral-8x7b", false},
                                         {"llama-4-scout", false},
                                         {"gpt-oss-20b", false}})
    EXPECT_EQ(find_model(preset).model.experts->corrects_scores, corrects) << preset;
  const auto with = [](const char* type, const char* method) {
    return read({{"model_type", type},
                 {"num_experts", "8"},
                 {"num_experts_per_tok", "2"},
                 {"topk_method", method}})
        .model.experts->corrects_scores;
  };
  EXPECT_TRUE(with("\"deepseek_v3\"", "null"));
  EXPECT_FALSE(with("\"deepseek_v3\"", "\"group_limited_greedy\""));
  EXPECT_TRUE(with("\"deepseek_v2\"", "\"noaux_tc\""));
  EXPECT_FALSE(with("\"mixtral\"", "null"));
}

// Each layer: r with rotary positions, n without; upper case where it has a window or a chunk.
std::string positions_of(std::map<std::string, std::string> fields) {
  const Transformer model = read(fields).model;
  std::string all;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerKind& kind = model.kinds[idx(model.kind_of(layer))];
    const bool cut = kind.window || kind.chunk;
    all += kind.rotary ? (cut ? 'R' : 'r') : cut ? 'N' : 'n';
  }
  return all;
}

TEST(ReadModel, LayersMayHaveNoPositions) {
  EXPECT_EQ(positions_of({}), "rrrr");
  EXPECT_EQ(positions_of({{"model_type", "\"smollm3\""}}), "rrrn");
  EXPECT_EQ(positions_of({{"model_type", "\"smollm3\""}, {"no_rope_layer_interval", "2"}}), "rnrn");
  EXPECT_EQ(positions_of({{"model_type", "\"smollm3\""}, {"no_rope_layers", "[0, 1, 1, 0]"}}), "nrrn");
  EXPECT_EQ(
      positions_of({{"model_type", "\"smollm3\""}, {"use_sliding_window", "true"}, {"sliding_window", "32"}}),
      "rrrN");
  EXPECT_EQ(positions_of({{"model_type", "\"llama4_text\""}, {"no_rope_layers", "[]"}}), "RRRn");
  EXPECT_EQ(positions_of({{"no_rope_layers", "[1, 0, 1, 0]"}}), "rnrn");
  EXPECT_THAT(config_error({{"no_rope_layers", "[1, 0]"}}),
              HasSubstr("no_rope_layers has 2 entries, and num_hidden_layers is 4; list one for each layer"));
}

TEST(ReadModel, LayersMayDifferInWhatTheySee) {
  const std::string types =
      R"(["sliding_attention", "full_attention", "chunked_attention", "full_attention"])";
  const Transformer mixed =
      read({{"layer_types", types}, {"sliding_window", "32"}, {"attention_chunk_size", "64"}}).model;
  EXPECT_EQ(mixed.kinds, (std::vector<LayerKind>{{32, {}}, {{}, {}}, {{}, 64}}));
  EXPECT_THAT(mixed.order, ElementsAre(0, 1, 2, 1));
  EXPECT_THAT(windows_of({{"sliding_window", "32"}, {"sliding_window_pattern", "3"}}),
              ElementsAre(32, 32, 0, 32));
  EXPECT_THAT(windows_of({{"sliding_window", "32"}, {"model_type", "\"gemma2\""}}),
              ElementsAre(32, 0, 32, 0));
  EXPECT_THAT(config_error({{"layer_types", types}, {"attention_chunk_size", "64"}}),
              HasSubstr("layer_types has sliding_attention, and sliding_window is missing"));
  EXPECT_THAT(config_error({{"layer_types", types}, {"sliding_window", "32"}}),
              HasSubstr("layer_types has chunked_attention, and attention_chunk_size is missing"));
  EXPECT_THAT(
      windows_of({{"layer_types",
                   R"(["sliding_attention", "full_attention", "sliding_attention", "full_attention"])"},
                  {"use_sliding_window", "false"},
                  {"sliding_window", "null"}}),
      ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(config_error({{"num_hidden_layers", "2000000000"}, {"sliding_window", "8"}}),
              HasSubstr("layers=2000000000"));
  EXPECT_THAT(config_error({{"layer_types", R"(["full_attention"])"}}),
              HasSubstr("layer_types has 1 entries, and num_hidden_layers is 4"));
  EXPECT_THAT(config_error({{"layer_types", R"(["linear_attention", "full_attention", "a", "b"])"}}),
              HasSubstr("what is described is full_attention, sliding_attention and chunked_attention"));
}

// As Python writes them, in a text they stay.
TEST(ReadModel, NumbersThatAreNotFiniteAreMissing) {
  const ReadModel infinite = sim::read_model(config({{"time_step_limit", "[0.0, Infinity, -Infinity]"},
                                                     {"sliding_window", "NaN"},
                                                     {"_note", "\"a \\\" NaN\""}}),
                                             "f", "n");
  EXPECT_EQ(infinite.model, sim::read_model(config(), "f", "n").model);
}

TEST(ReadModel, OfSeveralPartsTheLanguageModelIsTaken) {
  const ReadModel several = sim::read_model(
      str(R"({"model_type": "mistral3", "torch_dtype": "float16", "vision_config": {"hidden_size": 1}, "text_config": )",
          config({{"torch_dtype", "null"}}), "}"),
      "f", "n");
  EXPECT_EQ(several.model, sim::read_model(config(), "f", "n").model);
  EXPECT_THAT(several.assumptions,
              ElementsAre("text_config is planned, which is the language model; neither counted nor timed: "
                          "vision_config"));
  EXPECT_THAT(
      config_error({{"text_config", "{\"hidden_size\": 8}"}}),
      HasSubstr("config.json: text_config: num_hidden_layers, how many layers there are, is missing"));
}

TEST(ReadModel, ExpertsHaveAWidthOfTheirOwn) {
  const ReadModel r = read({{"model_type", "\"qwen3_moe\""},
                            {"num_experts", "16"},
                            {"num_experts_per_tok", "4"},
                            {"moe_intermediate_size", "32"},
                            {"decoder_sparse_step", "1"},
                            {"mlp_only_layers", "[]"}});
  EXPECT_EQ(r.model.experts, (Experts{16, 4, 32}));
  EXPECT_FALSE(read({{"num_experts", "0"}}).model.experts.has_value());
}

const std::map<std::string, std::string> kSixLayers = {{"num_hidden_layers", "6"},
                                                       {"num_experts", "16"},
                                                       {"num_experts_per_tok", "4"},
                                                       {"moe_intermediate_size", "32"}};

ReadModel with_experts(std::map<std::string, std::string> changes) {
  changes.insert(kSixLayers.begin(), kSixLayers.end());
  return read(changes);
}

// "deedee": layer 0 and 3 without experts.
std::string mlps_of(const std::map<std::string, std::string>& changes) {
  const Transformer model = with_experts(changes).model;
  std::string all;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerKind& kind = model.kinds[static_cast<std::size_t>(model.kind_of(layer))];
    all += model.parts_of(kind).mlp == Mlp::dense ? 'd' : 'e';
  }
  return all;
}

TEST(ReadModel, SomeLayersHaveExperts) {
  EXPECT_EQ(mlps_of({}), "eeeeee");
  EXPECT_EQ(mlps_of({{"first_k_dense_replace", "2"}}), "ddeeee");
  EXPECT_EQ(mlps_of({{"decoder_sparse_step", "2"}}), "dedede");
  EXPECT_EQ(mlps_of({{"interleave_moe_layer_step", "3"}}), "ddedde");
  EXPECT_EQ(mlps_of({{"decoder_sparse_step", "2"}, {"mlp_only_layers", "[1]"}}),
            "ddd"
            "ede");
  EXPECT_EQ(mlps_of({{"moe_layers", "[0, 5]"}}), "edddde");
  EXPECT_EQ(mlps_of({{"first_k_dense_replace", "1"}, {"moe_layer_freq", "2"}}), "ddeded");
  EXPECT_EQ(mlps_of({{"moe_layer_freq", "[0, 1, 1, 0, 1, 1]"}}), "deedee");
}

TEST(ReadModel, SharedExpertsAreAsWideTogether) {
  EXPECT_EQ(with_experts({{"n_shared_experts", "2"}}).model.experts, (Experts{16, 4, 32, 64}));
  EXPECT_EQ(with_experts({{"num_shared_experts", "1"}}).model.experts, (Experts{16, 4, 32, 32}));
  EXPECT_EQ(with_experts({{"shared_expert_intermediate_size", "48"}}).model.experts,
            (Experts{16, 4, 32, 48}));
  EXPECT_EQ(with_experts({{"n_shared_experts", "0"}}).model.experts, (Experts{16, 4, 32}));
}

TEST(ReadModelErrors, LayersWithExpertsThatDoNotAddUp) {
  const auto error = [](std::map<std::string, std::string> changes) {
    changes.insert(kSixLayers.begin(), kSixLayers.end());
    return config_error(changes);
  };
  EXPECT_THAT(error({{"mlp_only_layers", "[6]"}}),
              HasSubstr("mlp_only_layers has layer 6, and num_hidden_layers is 6; use 0 to 5"));
  EXPECT_THAT(error({{"moe_layer_freq", "[0, 1]"}}),
              HasSubstr("moe_layer_freq has 2 entries, and num_hidden_layers is 6; list one for each layer"));
  EXPECT_THAT(error({{"first_k_dense_replace", "6"}}),
              HasSubstr("none of 6 layers has experts (first_k_dense_replace 6,"));
  EXPECT_THAT(error({{"mlp_only_layers", "\"all\""}}), HasSubstr("it must be a list of whole numbers"));
  EXPECT_THAT(error({{"first_k_dense_replace", "1"}, {"intermediate_size", "null"}}),
              HasSubstr("intermediate_size, the width of the MLP in layers without experts, is missing"));
}

TEST(ReadModel, WhatIsNotCountedIsMarked) {
  EXPECT_THAT(read({{"attention_bias", "true"},
                    {"mlp_bias", "true"},
                    {"torch_dtype", "\"int4\""},
                    {"quantization_config", "{\"bits\": 4}"}})
                  .assumptions,
              ElementsAre(HasSubstr("mlp_bias"), HasSubstr("\"int4\""), HasSubstr("quantization_config")));
}

// ---- errors ----

struct Bad {
  std::map<std::string, std::string> changes;
  std::string message;
};

TEST(ReadModel, PredictionLayersAreLeftOutUntilTheyAreAskedFor) {
  constexpr const char* kKey = "num_nextn_predict_layers";
  ReadModel of_three = read({{kKey, "3"}});
  EXPECT_EQ(of_three.prediction_layers, 3);
  EXPECT_EQ(of_three.model.prediction_layers, 0);
  EXPECT_THAT(of_three.assumptions,
              ElementsAre("num_nextn_predict_layers is 3: the layers that predict further tokens (MTP) are "
                          "neither counted nor timed; in training --mtp-layers 3 plans them"));
  plan_prediction_layers(of_three, 1);
  EXPECT_EQ(of_three.model.prediction_layers, 1);
  EXPECT_THAT(of_three.assumptions, ElementsAre(HasSubstr("is 3: but for 1, the layers that predict")));
  plan_prediction_layers(of_three, 3);
  EXPECT_THAT(of_three.assumptions, IsEmpty());
  EXPECT_EQ(message_of([&] { plan_prediction_layers(of_three, 4); }),
            "num_nextn_predict_layers of small is 3; use at most 3");
  ReadModel of_none = read({});
  EXPECT_EQ(message_of([&] { plan_prediction_layers(of_none, 1); }),
            "the config of small has no layers that predict further tokens (num_nextn_predict_layers is 0 or "
            "missing); leave it out");
  ReadModel of_many = read({{kKey, "100"}});
  EXPECT_THAT(message_of([&] { plan_prediction_layers(of_many, 9); }),
              HasSubstr("prediction_layers=9 must be at least 0 and at most 8"));
}

TEST(ReadModelErrors, WrongTypesAndSenselessValuesAreNamed) {
  const std::vector<Bad> all = {
      {{{"hidden_size", "\"64\""}},
       "config.json: hidden_size is a string, \"64\"; it must be a whole number, for example 8"},
      {{{"hidden_size", "64.5"}}, "config.json: hidden_size is a number, 64.5; it must be"},
      {{{"hidden_size", "[64]"}}, "config.json: hidden_size is an array, [64]; it must be"},
      {{{"hidden_size", "{}"}}, "config.json: hidden_size is an object, {}; it must be"},
      {{{"hidden_size", "true"}}, "config.json: hidden_size is a boolean, true; it must be"},
      {{{"hidden_size", "-1"}}, "config.json: hidden_size=-1 must be at least 1 and at most 2147483648"},
      {{{"hidden_size", "0"}}, "config.json: hidden_size=0 must be at least 1"},
      {{{"hidden_size", "1e300"}}, "config.json: hidden_size is a number, 1e+300"},
      {{{"hidden_size", "1e999"}}, "config.json: number overflow parsing '1e999'"},
      {{{"hidden_size", "18446744073709551615"}}, "config.json: hidden_size=18446744073709551615 must be"},
      {{{"num_hidden_layers", "100000"}}, "config.json: model 'small': layers=100000 must be at least 1"},
      {{{"num_key_value_heads", "3"}},
       "config.json: num_key_value_heads=3 does not divide num_attention_heads=8; the nearest one below that "
       "does is 2"},
      {{{"num_attention_heads", "6"}, {"head_dim", "null"}},
       "hidden_size=64 is not divisible by num_attention_heads=6"},
      {{{"num_key_value_heads", "null"}, {"num_kv_heads", "4"}},
       "config.json: num_kv_heads is not read; did you mean num_key_value_heads?"},
      {{{"tie_word_embeddings", "1"}},
       "config.json: tie_word_embeddings is a number, 1; it must be true or false"},
      {{{"model_type", "7"}}, "config.json: model_type is a number, 7; it must be a string"},
      {{{"layer_types", "[1]"}, {"sliding_window", "8"}},
       "layer_types is an array, [1]; it must be a list of strings"},
      {{{"hidden_size", "null"}, {"d_model", "64"}},
       "hidden_size, the width of what layers hand on, is missing; d_model is not read, did you mean "
       "hidden_size?"},
      {{{"num_hidden_layers", "null"}, {"num_hiden_layers", "4"}}, "did you mean num_hidden_layers?"},
      {{{"num_experts", "4"}},
       "num_experts_per_tok, how many experts each token goes to, is missing; add it"},
      {{{"num_experts", "4"}, {"num_experts_per_tok", "5"}},
       "num_experts_per_tok=5 is more than the 4 experts of a layer; use at most 4"},
      {{{"num_experts", "4"}, {"num_local_experts", "8"}, {"num_experts_per_tok", "2"}},
       "num_local_experts=8 and num_experts=4 disagree"},
      {{{"hidden_size", "2147483648"}, {"vocab_size", "2147483648"}}, "parameters are more than"},
  };
  for (const Bad& bad : all) EXPECT_THAT(config_error(bad.changes), HasSubstr(bad.message));
}

// Blocks of one norm, which subtracts the mean; layers that see all keys have no positions (Cohere2Config of
// transformers 5, and CohereConfig).
TEST(ReadModel, TakesCoheresParallelBlocks) {
  const Transformer r7b = find_model("command-r7b").model;
  EXPECT_TRUE(r7b.parallel_blocks && r7b.tied_embeddings && r7b.numerics.norm_centered);
  EXPECT_TRUE(r7b.numerics.interleaved_rotary);
  EXPECT_EQ(r7b.numerics.logit_scale, 0.25);
  EXPECT_EQ(r7b.numerics.norm_eps, 1e-5);
  for (std::int64_t layer = 0; layer < r7b.layers; ++layer) {
    const LayerKind& kind = r7b.kinds[idx(r7b.kind_of(layer))];
    const bool full = layer % 4 == 3;
    EXPECT_EQ(kind.window, full ? std::nullopt : std::optional<std::int64_t>(4096)) << layer;
    EXPECT_EQ(kind.rotary, !full) << layer;
  }
  // By its list, too; of cohere no layer has a window, and all have positions.
  const std::string types = R"(["full_attention", "sliding_attention"])";
  const Transformer listed = read({{"model_type", "\"cohere2\""},
                                   {"num_hidden_layers", "2"},
                                   {"sliding_window", "7"},
                                   {"layer_types", types}})
                                 .model;
  EXPECT_FALSE(listed.kinds[idx(listed.kind_of(0))].rotary);
  EXPECT_EQ(listed.kinds[idx(listed.kind_of(1))].window, 7);
  const ReadModel cohere = read({{"model_type", "\"cohere\""}});
  EXPECT_TRUE(cohere.model.parallel_blocks && cohere.model.kinds.size() == 1);
  EXPECT_TRUE(cohere.model.kinds.front().rotary && !cohere.model.kinds.front().window);
  EXPECT_EQ(cohere.model.numerics.logit_scale, 0.0625);
  EXPECT_THAT(cohere.not_computed, IsEmpty());
  EXPECT_THAT(read({{"model_type", "\"cohere\""}, {"use_qk_norm", "true"}}).not_computed,
              ElementsAre("of use_qk_norm, the weights of all heads but one are not described"));
  EXPECT_THAT(find_model("nemotron-4-340b").not_computed, ElementsAre("biases of norms are not described"));
  // What other classes do not read changes nothing, and is said.
  const ReadModel llama = read({{"layer_norm_eps", "1e-12"}, {"logit_scale", "0.5"}, {"rotary_pct", "0.25"}});
  EXPECT_EQ(llama.model.numerics, read({}).model.numerics);
  EXPECT_THAT(llama.assumptions,
              Contains(HasSubstr("2 keys of the config are not read: logit_scale, rotary_pct")));
}

TEST(ReadModelErrors, SeveralAreSaidAtOnce) {
  EXPECT_THAT(config_error({{"hidden_size", "null"}, {"vocab_size", "-4"}, {"attention_bias", "\"no\""}}),
              AllOf(HasSubstr("hidden_size, the width of what layers hand on, is missing"),
                    HasSubstr("\nconfig.json: vocab_size=-4"),
                    HasSubstr("\nconfig.json: attention_bias is a string")));
}

TEST(ReadModelErrors, OtherKindsOfModelsAreRefusedWithTheNearestThing) {
  const std::vector<Bad> all = {
      {{{"model_type", "\"mamba2\""}}, "model_type \"mamba2\": of layers with a recurrent state"},
      {{{"model_type", "\"deepseek_v32\""}, {"index_topk", "2048"}},
       "model_type \"deepseek_v32\", index_topk 2048: sparse attention"},
      {{{"is_encoder_decoder", "true"}}, "is_encoder_decoder true: an encoder with a decoder"},
      {{{"model_type", "\"bert\""}}, "an encoder, which writes no tokens"},
      {{{"model_type", "\"gpt2\""}}, "layers of this family, with learned positions"},
      {{{"model_type", "\"gpt_neox\""}, {"use_parallel_residual", "true"}},
       "use_parallel_residual true: blocks whose attention and MLP take the same rows, side by side"},
      {{{"model_type", "\"cohere2_moe\""}, {"num_experts", "8"}, {"num_experts_per_tok", "2"}},
       "model_type \"cohere2_moe\": blocks whose attention and MLP take the same rows"},
      {{{"use_parallel_block", "true"}}, "use_parallel_block true: blocks whose attention and MLP"},
      {{{"model_type", "\"cohere2\""}, {"sliding_window", "null"}},
       "sliding_window is 0 or null, and layers without a window have no positions in this family"},
      {{{"ffn_config", "{\"moe_num_experts\": 16}"}}, "sizes stand in parts of a config of their own"},
      {{{"cross_attention_layers", "[3, 8]"}}, "layers that attend to another model's rows"},
      {{{"num_kv_shared_layers", "2"}}, "layers that take the keys and values of another layer"},
      {{{"model_type", "\"ernie4_5_moe\""}}, "experts under keys of this family's own"},
      {{{"model_type", "\"bamba\""}, {"mamba_d_state", "16"}},
       "mamba_d_state 16: of layers with a recurrent"},
  };
  for (const Bad& bad : all) {
    EXPECT_THAT(config_error(bad.changes),
                AllOf(HasSubstr(bad.message), AnyOf(HasSubstr("nearest thing"), HasSubstr("as 4096"))))
        << bad.message;
  }
  EXPECT_NO_THROW(
      read({{"kv_lora_rank", "null"}, {"is_encoder_decoder", "false"}, {"n_shared_experts", "0"}}));
}

TEST(ReadModelErrors, TextThatIsNoJsonIsPlaced) {
  const auto error = [](const char* text) { return message_of([&] { read_model(text, "f.json", "n"); }); };
  EXPECT_THAT(error("{\n  \"hidden_size\": 4,\n  oops\n}"),
              HasSubstr("f.json:3:3: the text is not JSON: syntax error"));
  EXPECT_THAT(error(""), HasSubstr("f.json:1:1: the text is not JSON:"));
  EXPECT_THAT(error("{\"a\": 1"), HasSubstr("f.json:1:8: the text is not JSON:"));
  EXPECT_THAT(error("{} x"), HasSubstr("f.json:1:4: the text is not JSON:"));
  EXPECT_THAT(error("{\"a\": \"\xff\xfe\"}"),
              AllOf(HasSubstr("f.json:1:8: the text is not JSON:"), Not(HasSubstr("\xff"))));
  EXPECT_EQ(error("[1]"),
            "f.json: the file holds a JSON array, not an object {...}; use the config.json of a model");
}

// Whatever is cut off or put in the place of a byte: it is read, or refused as bad input.
TEST(ReadModelErrors, DamagedTextsNeverDoMore) {
  const auto take = [](const std::string& text) {
    try {
      read_model(text, "f.json", "n");
    } catch (const InvalidInput& error) {
      EXPECT_THAT(error.what(), HasSubstr("f.json"));
    }
  };
  for (const EmbeddedText& preset : embedded_models()) {
    const std::string text(preset.text);
    for (std::size_t size = 0; size < text.size(); ++size) take(text.substr(0, size));
    if (preset.name != "mixtral-8x7b") continue;
    for (std::size_t at = 0; at < text.size(); ++at) {
      for (const char c : {'\0', '"', '}', '[', '-', '9', 'e', '\xff'}) {
        std::string damaged = text;
        damaged[at] = c;
        take(damaged);
      }
    }
  }
  take(std::string(100'000, '['));
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  take(nested);
}

// ---- files ----

class ModelFiles : public ::testing::Test {
 protected:
  ModelFiles()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                str("read_model_test_", ::testing::UnitTest::GetInstance()->current_test_info()->name()) /
                "tiny-1b") {
    std::filesystem::create_directories(folder_);
  }
  ~ModelFiles() override { std::filesystem::remove_all(folder_.parent_path()); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  std::filesystem::path folder_;
};

TEST_F(ModelFiles, AreReadByPathAndByFolder) {
  const std::string path = write("config.json", config());
  for (const std::string& name : {path, folder_.string()}) {
    const ReadModel read = load_model(name);
    EXPECT_EQ(read.model.name, "tiny-1b");
    EXPECT_EQ(read.source, path);
    EXPECT_EQ(read.model.hidden, 64);
  }
  EXPECT_EQ(load_model(write("other.json", config())).model.name, "other");
}

TEST_F(ModelFiles, ThatAreNotThereAreNamed) {
  EXPECT_THAT(message_of([&] { load_model((folder_ / "config.json").string()); }),
              AllOf(HasSubstr("cannot read the model"), HasSubstr("tiny-1b/config.json")));
  EXPECT_THAT(message_of([&] { load_model(folder_.string()); }), HasSubstr("holds no config.json"));
}

}  // namespace
}  // namespace cp::sim
