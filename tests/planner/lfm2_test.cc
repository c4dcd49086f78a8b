// What configs of LFM2 say in their own way, and what is refused of them.
#include "sim/planner/models/lfm2.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/planner/models/read_model.h"
#include "tests/support/messages.h"

namespace cp::sim {
namespace {

using ::cp::testing::message_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Lfm2Fields = std::map<std::string, std::string>;

// The fields of a small one with four layers; null leaves one out. Of lfm2_moe there are four experts.
std::string lfm2_config(const std::string& model_type, const Lfm2Fields& changes) {
  Lfm2Fields fields = {{"model_type", str('"', model_type, '"')},
                       {"hidden_size", "64"},
                       {"num_hidden_layers", "4"},
                       {"layer_types", R"(["conv", "full_attention", "conv", "conv"])"},
                       {"num_attention_heads", "8"},
                       {"num_key_value_heads", "2"},
                       {"head_dim", "8"},
                       {"intermediate_size", "128"},
                       {"conv_L_cache", "3"},
                       {"vocab_size", "1000"},
                       {"tie_word_embeddings", "true"},
                       {"max_position_embeddings", "512"}};
  if (model_type == "lfm2_moe") {
    fields.insert({{"num_experts", "4"},
                   {"num_experts_per_tok", "2"},
                   {"moe_intermediate_size", "32"},
                   {"num_dense_layers", "1"}});
  }
  for (const auto& [key, value] : changes) fields[key] = value;
  std::vector<std::string> lines;
  for (const auto& [key, value] : fields) {
    if (value != "left out") lines.push_back(str("  \"", key, "\": ", value));
  }
  return str("{\n", join(lines, ",\n"), "\n}\n");
}

ReadModel read_lfm2(const Lfm2Fields& changes, const std::string& model_type = "lfm2") {
  return read_model(lfm2_config(model_type, changes), "config.json", "small");
}
std::string lfm2_error(const Lfm2Fields& changes, const std::string& model_type = "lfm2") {
  return message_of([&] { read_lfm2(changes, model_type); });
}

std::vector<Mixer> mixers_of_layers(const Transformer& model) {
  std::vector<Mixer> mixers;
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    mixers.push_back(model.kinds[idx(model.kind_of(layer))].mixer);
  return mixers;
}

constexpr Mixer kConv = Mixer::convolution, kAttends = Mixer::attention;

TEST(Lfm2, TakesWhatTransformersTake) {
  const ReadModel small = read_lfm2({});
  EXPECT_THAT(small.assumptions, IsEmpty());
  EXPECT_THAT(small.warnings, IsEmpty());
  EXPECT_THAT(small.not_computed, IsEmpty());
  EXPECT_THAT(mixers_of_layers(small.model), ElementsAre(kConv, kAttends, kConv, kConv));
  EXPECT_EQ(small.model.convolution, ShortConvolution{});
  EXPECT_TRUE(small.model.qk_norm);
  EXPECT_FALSE(small.model.qk_norm_of_all_heads);
  EXPECT_TRUE(small.model.tied_embeddings);
  EXPECT_EQ(small.model.numerics.norm_eps, 1e-5);
  EXPECT_EQ(small.model.numerics.rotary.theta, 1e6);
  EXPECT_EQ(read_lfm2({{"conv_L_cache", "5"}, {"conv_bias", "true"}}).model.convolution,
            (ShortConvolution{5, true}));
  // What Transformers 5 save, and what older files have beside.
  EXPECT_EQ(read_lfm2({{"rope_parameters", R"({"rope_theta": 1e7, "rope_type": "default"})"}})
                .model.numerics.rotary.theta,
            1e7);
  EXPECT_EQ(read_lfm2({{"full_attn_idxs", "null"},
                       {"block_dim", "64"},
                       {"block_norm_eps", "1e-5"},
                       {"block_use_swiglu", "true"},
                       {"block_mlp_init_scale", "1.0"},
                       {"block_use_xavier_init", "true"},
                       {"conv_dim", "64"},
                       {"conv_dim_out", "64"},
                       {"num_heads", "8"},
                       {"theta", "1e6"},
                       {"use_pos_enc", "true"}})
                .assumptions,
            small.assumptions);
}

TEST(Lfm2, LayersThatAttendAreNamedOrNumbered) {
  const Lfm2Fields numbered = {{"layer_types", "null"}, {"full_attn_idxs", "[1]"}};
  EXPECT_EQ(read_lfm2(numbered).model, read_lfm2({}).model);
  EXPECT_EQ(read_lfm2({{"full_attn_idxs", "[1]"}}).model, read_lfm2({}).model);
  EXPECT_EQ(read_lfm2(numbered, "lfm2_moe").model, read_lfm2({}, "lfm2_moe").model);
  EXPECT_THAT(
      lfm2_error({{"full_attn_idxs", "[1, 2]"}}),
      HasSubstr("full_attn_idxs is [1, 2], and by layer_types the layers [1] attend; leave one of the "
                "two out"));
  EXPECT_THAT(lfm2_error({{"layer_types", "null"}, {"full_attn_idxs", "[4]"}}),
              HasSubstr("full_attn_idxs has layer 4, and num_hidden_layers is 4; use 0 to 3"));
  EXPECT_THAT(lfm2_error({{"layer_types", R"(["conv", "full_attention"])"}}),
              HasSubstr("layer_types has 2 entries, and num_hidden_layers is 4"));
  EXPECT_THAT(lfm2_error({{"layer_types", R"(["conv", "short_conv", "full_attention", "conv"])"}}),
              HasSubstr("layer_types has \"short_conv\" for layer 1; what is described is conv and "
                        "full_attention"));
  EXPECT_THAT(lfm2_error({{"layer_types", R"(["conv", "conv", "conv", "conv"])"}}),
              HasSubstr("no layer has attention"));
  const ReadModel without = read_lfm2({{"layer_types", "null"}});
  EXPECT_THAT(without.assumptions, ElementsAre(HasSubstr("so all layers attend, and none convolves")));
  EXPECT_EQ(without.model.convolution, std::nullopt);
  EXPECT_THAT(lfm2_error({{"layer_types", "null"}}, "lfm2_moe"),
              HasSubstr("layer_types is missing; list conv"));
}

TEST(Lfm2, KeysThatItsClassesDoNotReadAreRefused) {
  EXPECT_THAT(lfm2_error({{"n_shared_experts", "1"}}, "lfm2_moe"),
              HasSubstr("n_shared_experts is 1, and Transformers read no such key of lfm2_moe"));
  EXPECT_THAT(lfm2_error({{"qk_norm", "false"}}), HasSubstr("qk_norm is false, and Transformers read no"));
  EXPECT_THAT(lfm2_error({{"mlp_only_layers", "[3]"}}, "lfm2_moe"), HasSubstr("leave it out"));
}

// int(2/3 of it) times the multiplier, up to the next multiple.
TEST(Lfm2, TheWidthOfTheMlpIsMadeOfWhatTheConfigSays) {
  const auto width = [](const Lfm2Fields& fields) { return read_lfm2(fields).model.intermediate; };
  EXPECT_EQ(width({}), 256);  // of 85
  EXPECT_EQ(width({{"block_multiple_of", "16"}}), 96);
  EXPECT_EQ(width({{"block_multiple_of", "16"}, {"block_ffn_dim_multiplier", "1.2"}}), 112);  // of 102
  EXPECT_EQ(width({{"block_multiple_of", "16"}, {"block_ffn_dim_multiplier", "null"}}), 85);
  EXPECT_EQ(width({{"block_auto_adjust_ff_dim", "false"}}), 128);
  EXPECT_EQ(width({{"intermediate_size", "12288"}}), 8192);
  EXPECT_EQ(width({{"intermediate_size", "left out"}, {"block_ff_dim", "6656"}}), 4608);
  const ReadModel both = read_lfm2({{"block_ff_dim", "6656"}});
  EXPECT_EQ(both.model.intermediate, 4608);
  EXPECT_THAT(both.assumptions,
              ElementsAre(HasSubstr("block_ff_dim is 6656 and intermediate_size 128, of which "
                                    "block_ff_dim is taken")));
  EXPECT_THAT(lfm2_error({{"block_ffn_dim_multiplier", "0"}}),
              HasSubstr("block_ffn_dim_multiplier=0 makes 0 of two thirds of a width of 128"));
  EXPECT_THAT(lfm2_error({{"intermediate_size", "left out"}}),
              HasSubstr("intermediate_size, the width that"));
  EXPECT_EQ(read_lfm2({}, "lfm2_moe").model.intermediate, 128);
  EXPECT_THAT(read_lfm2({{"block_ff_dim", "6656"}}, "lfm2_moe").assumptions,
              Contains(HasSubstr("not read: block_ff_dim")));
}

TEST(Lfm2, TheOlderKeyOfTiedEmbeddingsCountsFirst) {
  EXPECT_FALSE(read_lfm2({{"tie_word_embeddings", "false"}}).model.tied_embeddings);
  EXPECT_FALSE(
      read_lfm2({{"tie_word_embeddings", "left out"}, {"tie_embedding", "false"}}).model.tied_embeddings);
  const ReadModel both = read_lfm2({{"tie_embedding", "false"}});
  EXPECT_FALSE(both.model.tied_embeddings);
  EXPECT_THAT(both.assumptions, ElementsAre(HasSubstr("of which tie_embedding is taken")));
  const ReadModel neither = read_lfm2({{"tie_word_embeddings", "null"}});
  EXPECT_TRUE(neither.model.tied_embeddings);
  EXPECT_THAT(neither.assumptions, ElementsAre(HasSubstr("tie_word_embeddings is missing, so true")));
}

TEST(Lfm2, HasExpertsBehindTheFirstLayers) {
  const ReadModel moe = read_lfm2({}, "lfm2_moe");
  EXPECT_EQ(moe.model.experts, (Experts{4, 2, 32, 0, false, false, true}));
  EXPECT_TRUE(moe.model.numerics.router.sigmoid);
  EXPECT_TRUE(moe.model.numerics.router.normalized);
  EXPECT_THAT(moe.assumptions, IsEmpty());
  std::vector<Mlp> mlps;
  for (std::int64_t layer = 0; layer < 4; ++layer)
    mlps.push_back(moe.model.parts_of(moe.model.kinds[idx(moe.model.kind_of(layer))]).mlp);
  EXPECT_THAT(mlps, ElementsAre(Mlp::dense, Mlp::experts, Mlp::experts, Mlp::experts));
  EXPECT_FALSE(read_lfm2({{"use_expert_bias", "false"}}, "lfm2_moe").model.experts->corrects_scores);
  EXPECT_FALSE(read_lfm2({{"norm_topk_prob", "false"}}, "lfm2_moe").model.numerics.router.normalized);
  EXPECT_EQ(read_lfm2({{"routed_scaling_factor", "2.5"}}, "lfm2_moe").model.numerics.router.scale, 2.5);
  EXPECT_THAT(read_lfm2({{"num_dense_layers", "null"}}, "lfm2_moe").assumptions,
              ElementsAre(HasSubstr("num_dense_layers is missing, so 2 is taken, the default of lfm2_moe")));
  EXPECT_THAT(read_lfm2({{"num_experts_per_tok", "null"}, {"num_experts", "8"}}, "lfm2_moe").assumptions,
              ElementsAre(HasSubstr("num_experts_per_tok is missing, so 4 is taken")));
  EXPECT_THAT(lfm2_error({{"num_dense_layers", "4"}}, "lfm2_moe"),
              HasSubstr("none of 4 layers has experts (num_dense_layers 4"));
  for (const auto& [count, said] : Lfm2Fields{{"null", "missing"}, {"0", "0"}})
    EXPECT_THAT(lfm2_error({{"num_experts", count}}, "lfm2_moe"),
                HasSubstr(str("num_experts, how many experts a layer has, is ", said)));
  EXPECT_THAT(lfm2_error({{"moe_intermediate_size", "null"}}, "lfm2_moe"),
              HasSubstr("moe_intermediate_size, the width inside each expert, is missing"));
  EXPECT_THAT(lfm2_error({{"num_experts", "4"}}),
              HasSubstr("lfm2 has no experts; set model_type to lfm2_moe"));
}

// All at once.
TEST(Lfm2, RefusesWhatItsLayersNeverHave) {
  EXPECT_THAT(
      lfm2_error({{"block_dim", "32"},
                  {"conv_dim", "128"},
                  {"num_heads", "4"},
                  {"block_use_swiglu", "false"},
                  {"use_pos_enc", "false"},
                  {"hidden_act", "\"gelu\""},
                  {"attention_bias", "true"},
                  {"sliding_window", "16"}}),
      AllOf(HasSubstr("block_dim=32 is not hidden_size=64"), HasSubstr("conv_dim=128 is not hidden_size=64"),
            HasSubstr("num_heads=4 is not num_attention_heads=8"),
            HasSubstr("block_use_swiglu is false, and an MLP without a gate is not described of lfm2"),
            HasSubstr("use_pos_enc is false, and attention without rotary positions"),
            HasSubstr("hidden_act is \"gelu\", and MLPs of lfm2 have silu"),
            HasSubstr("attention_bias is true, and lfm2 has no such biases"),
            HasSubstr("sliding_window is 16, and all layers of lfm2 that attend see all keys")));
  EXPECT_THAT(lfm2_error({{"conv_L_cache", "0"}}), HasSubstr("conv_L_cache=0 must be at least 1"));
  EXPECT_THAT(read_lfm2({{"conv_L_cache", "null"}}).assumptions,
              ElementsAre(HasSubstr("conv_L_cache is missing, so 3 is taken")));
  EXPECT_THAT(
      read_lfm2({{"block_norm_eps", "1e-6"}, {"theta", "1e4"}}).assumptions,
      ElementsAre(HasSubstr("of which norm_eps is taken"), HasSubstr("of which rope_theta is taken")));
}

// Whatever says sizes says them of a model that was made smaller.
TEST(Lfm2, SizesOfASmallerModelStandInItsConfig) {
  const Lfm2Fields fields = {
      {"layer_types", "null"}, {"full_attn_idxs", "[1, 3]"}, {"block_ff_dim", "6656"},
      {"block_dim", "64"},     {"conv_dim", "64"},           {"conv_dim_out", "64"},
      {"num_heads", "8"},      {"head_dim", "left out"},     {"intermediate_size", "left out"}};
  Transformer model = read_lfm2(fields).model;
  model.hidden = 32, model.q_heads = 4, model.intermediate = 40, model.layers = 3, model.order.pop_back();
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(lfm2_config("lfm2", fields));
  set_lfm2_sizes(json, model);
  json["hidden_size"] = 32, json["num_attention_heads"] = 4, json["num_hidden_layers"] = 3;
  EXPECT_EQ(read_model(json.dump(), "config.json", "small").model, model);
}

// A convolution's keys are of no other family.
TEST(Lfm2, ItsKeysAreSaidOfOtherFamilies) {
  EXPECT_THAT(read_model(lfm2_config("llama", {{"layer_types", "null"}}), "config.json", "small").assumptions,
              ElementsAre("1 key of the config is not read: conv_L_cache"));
  EXPECT_THAT(message_of([] { read_model(lfm2_config("llama", {}), "config.json", "small"); }),
              HasSubstr("layer_types has \"conv\"; what is described is full_attention"));
}

}  // namespace
}  // namespace cp::sim
