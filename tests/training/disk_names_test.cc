#include "traces/checkpoints/disk_names.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/planner/models/read_model.h"

namespace cp {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// "name [rows, columns]" of layer 0 and of what is in no layer.
std::set<std::string> first_layer(const DiskNames& names) {
  std::set<std::string> first;
  for (const DiskTensor& tensor : names.tensors()) {
    if (tensor.tensor.find(".layers.1.") == std::string::npos)
      first.insert(str(tensor.tensor, " [", join(tensor.shape, ", "), "]"));
  }
  return first;
}

DiskNames names_of(const std::string& family, const std::string& more) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("disk_names_" + family);
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": ")" << family << R"(", "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "vocab_size": 32, "max_position_embeddings": 64, "tie_word_embeddings": false)"
                                        << more << "}";
  const Transformer model = sim::load_model(folder.string()).model;
  fs::remove_all(folder);
  return DiskNames::of(family, model);
}

// What Transformers 5.24 save of these configs:
// AutoModelForCausalLM.from_config(config).save_pretrained(folder).
TEST(DiskNames, AreThoseThatTransformersSave) {
  const std::set<std::string> of_both = {
      "lm_head.weight [32, 16]", "model.embed_tokens.weight [32, 16]", "model.norm.weight [16]",
      "model.layers.0.input_layernorm.weight [16]", "model.layers.0.post_attention_layernorm.weight [16]"};
  std::set<std::string> mixtral = of_both, phi = of_both;
  for (const char* tensor : {"self_attn.k_proj.weight [8, 16]", "self_attn.o_proj.weight [16, 16]",
                             "self_attn.q_proj.weight [16, 16]", "self_attn.v_proj.weight [8, 16]",
                             "block_sparse_moe.gate.weight [4, 16]"})
    mixtral.insert(str("model.layers.0.", tensor));
  for (int expert = 0; expert < 4; ++expert) {
    for (const char* tensor : {"w1.weight [24, 16]", "w2.weight [16, 24]", "w3.weight [24, 16]"})
      mixtral.insert(str("model.layers.0.block_sparse_moe.experts.", expert, ".", tensor));
  }
  for (const char* tensor : {"mlp.down_proj.weight [16, 24]", "mlp.gate_up_proj.weight [48, 16]",
                             "self_attn.o_proj.weight [16, 16]", "self_attn.qkv_proj.weight [32, 16]"})
    phi.insert(str("model.layers.0.", tensor));
  EXPECT_EQ(first_layer(names_of("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)")),
            mixtral);
  EXPECT_EQ(first_layer(names_of("phi3", "")), phi);
  std::set<std::string> llama4 = of_both, gpt_oss = of_both, qwen2_moe = of_both;
  const auto attention = [](std::set<std::string>& names, bool biases, bool of_output) {
    for (const auto& [tensor, rows] :
         {std::pair{"q_proj", 16}, {"k_proj", 8}, {"v_proj", 8}, {"o_proj", 16}}) {
      names.insert(str("model.layers.0.self_attn.", tensor, ".weight [", rows, ", 16]"));
      if (biases && (of_output || std::string(tensor) != "o_proj"))
        names.insert(str("model.layers.0.self_attn.", tensor, ".bias [", rows, "]"));
    }
  };
  attention(llama4, false, false), attention(gpt_oss, true, true), attention(qwen2_moe, true, false);
  for (const char* tensor :
       {"feed_forward.experts.down_proj [4, 24, 16]", "feed_forward.experts.gate_up_proj [4, 16, 48]",
        "feed_forward.router.weight [4, 16]", "feed_forward.shared_expert.down_proj.weight [16, 24]",
        "feed_forward.shared_expert.gate_proj.weight [24, 16]",
        "feed_forward.shared_expert.up_proj.weight [24, 16]"})
    llama4.insert(str("model.layers.0.", tensor));
  for (const char* tensor : {"mlp.experts.down_proj [4, 24, 16]", "mlp.experts.down_proj_bias [4, 16]",
                             "mlp.experts.gate_up_proj [4, 16, 48]", "mlp.experts.gate_up_proj_bias [4, 48]",
                             "mlp.router.bias [4]", "mlp.router.weight [4, 16]", "self_attn.sinks [4]"})
    gpt_oss.insert(str("model.layers.0.", tensor));
  for (const char* tensor : {"gate.weight [4, 16]", "shared_expert.down_proj.weight [16, 20]",
                             "shared_expert.gate_proj.weight [20, 16]",
                             "shared_expert.up_proj.weight [20, 16]", "shared_expert_gate.weight [1, 16]"})
    qwen2_moe.insert(str("model.layers.0.mlp.", tensor));
  for (int expert = 0; expert < 4; ++expert) {
    for (const char* tensor :
         {"down_proj.weight [16, 12]", "gate_proj.weight [12, 16]", "up_proj.weight [12, 16]"})
      qwen2_moe.insert(str("model.layers.0.mlp.experts.", expert, ".", tensor));
  }
  EXPECT_EQ(first_layer(names_of("llama4_text", R"(, "num_local_experts": 4, "num_experts_per_tok": 1,
                                 "intermediate_size_mlp": 20, "interleave_moe_layer_step": 1)")),
            llama4);
  EXPECT_EQ(first_layer(names_of("gpt_oss", R"(, "num_local_experts": 4, "num_experts_per_tok": 2,
                                 "attention_bias": true, "sliding_window": 8)")),
            gpt_oss);
  EXPECT_EQ(first_layer(names_of("qwen2_moe", R"(, "num_experts": 4, "num_experts_per_tok": 2,
                                 "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20)")),
            qwen2_moe);
}

// Likewise of families with recurrences.
TEST(DiskNames, OfRecurrencesAreThoseThatTransformersSave) {
  std::set<std::string> qwen = {"lm_head.weight [32, 16]", "model.embed_tokens.weight [32, 16]",
                                "model.norm.weight [16]"},
                        nemotron = {"lm_head.weight [32, 16]", "backbone.embeddings.weight [32, 16]",
                                    "backbone.norm_f.weight [16]"};
  for (const char* tensor :
       {"input_layernorm.weight [16]", "linear_attn.A_log [4]", "linear_attn.conv1d.weight [28, 1, 4]",
        "linear_attn.dt_bias [4]", "linear_attn.in_proj_ba.weight [8, 16]",
        "linear_attn.in_proj_qkvz.weight [44, 16]", "linear_attn.norm.weight [4]",
        "linear_attn.out_proj.weight [16, 16]", "mlp.down_proj.weight [16, 24]",
        "mlp.gate_proj.weight [24, 16]", "mlp.up_proj.weight [24, 16]",
        "post_attention_layernorm.weight [16]"})
    qwen.insert(str("model.layers.0.", tensor));
  for (const char* tensor :
       {"mixer.A_log [4]", "mixer.D [4]", "mixer.conv1d.bias [28]", "mixer.conv1d.weight [28, 1, 4]",
        "mixer.dt_bias [4]", "mixer.in_proj.weight [48, 16]", "mixer.norm.weight [16]",
        "mixer.out_proj.weight [16, 16]", "norm.weight [16]"})
    nemotron.insert(str("backbone.layers.0.", tensor));
  const char* const of_qwen = R"(, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4)";
  const char* const of_nemotron = R"(, "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4,
    "mamba_head_dim": 4, "ssm_state_size": 3, "n_groups": 2, "conv_kernel": 4, "use_conv_bias": true)";
  EXPECT_EQ(first_layer(names_of("qwen3_next", of_qwen)), qwen);
  EXPECT_EQ(first_layer(names_of("nemotron_h", of_nemotron)), nemotron);
}

// What Transformers 5.24 save of Lfm2Config(conv_bias=True) and of Lfm2MoeConfig with two layers, of which
// the first convolves and the second attends.
TEST(DiskNames, OfShortConvolutionsAreThoseThatTransformersSave) {
  const auto on_disk = [](const std::string& family, const std::vector<TensorShape>& shapes) {
    std::vector<std::string> names;
    const DiskNames of(family, shapes, {});
    for (const DiskTensor& tensor : of.tensors())
      names.push_back(str(tensor.tensor, " [", join(tensor.shape, ", "), "]"));
    return names;
  };
  const std::string first = "model.layers.0.", second = "model.layers.1.";
  EXPECT_THAT(
      on_disk("lfm2", {{"model.embed_tokens.weight", 32, 16},
                       {first + "input_layernorm.weight", 1, 16},
                       {first + "conv.in_proj.weight", 48, 16},
                       {first + "conv.in_proj.bias", 1, 48},
                       {first + "conv.conv.weight", 16, 3},
                       {first + "conv.conv.bias", 1, 16},
                       {first + "conv.out_proj.weight", 16, 16},
                       {first + "conv.out_proj.bias", 1, 16},
                       {first + "post_attention_layernorm.weight", 1, 16},
                       {first + "mlp.gate_proj.weight", 24, 16},
                       {first + "mlp.up_proj.weight", 24, 16},
                       {first + "mlp.down_proj.weight", 16, 24},
                       {"model.norm.weight", 1, 16},
                       {"lm_head.weight", 32, 16}}),
      ElementsAre("model.embed_tokens.weight [32, 16]", first + "operator_norm.weight [16]",
                  first + "conv.in_proj.weight [48, 16]", first + "conv.in_proj.bias [48]",
                  first + "conv.conv.weight [16, 1, 3]", first + "conv.conv.bias [16]",
                  first + "conv.out_proj.weight [16, 16]", first + "conv.out_proj.bias [16]",
                  first + "ffn_norm.weight [16]", first + "feed_forward.w1.weight [24, 16]",
                  first + "feed_forward.w3.weight [24, 16]", first + "feed_forward.w2.weight [16, 24]",
                  "model.embedding_norm.weight [16]", "lm_head.weight [32, 16]"));
  const std::string ours = second + "mlp.experts.1.", there = second + "feed_forward.experts.1.";
  EXPECT_THAT(
      on_disk("lfm2_moe", {{second + "input_layernorm.weight", 1, 16},
                           {second + "self_attn.q_proj.weight", 16, 16},
                           {second + "self_attn.k_proj.weight", 8, 16},
                           {second + "self_attn.v_proj.weight", 8, 16},
                           {second + "self_attn.q_norm.weight", 1, 4},
                           {second + "self_attn.k_norm.weight", 1, 4},
                           {second + "self_attn.o_proj.weight", 16, 16},
                           {second + "post_attention_layernorm.weight", 1, 16},
                           {second + "mlp.gate.weight", 4, 16},
                           {second + "mlp.gate.e_score_correction_bias", 1, 4, false},
                           {ours + "gate_proj.weight", 12, 16},
                           {ours + "up_proj.weight", 12, 16},
                           {ours + "down_proj.weight", 16, 12}}),
      ElementsAre(second + "operator_norm.weight [16]", second + "self_attn.q_proj.weight [16, 16]",
                  second + "self_attn.k_proj.weight [8, 16]", second + "self_attn.v_proj.weight [8, 16]",
                  second + "self_attn.q_layernorm.weight [4]", second + "self_attn.k_layernorm.weight [4]",
                  second + "self_attn.out_proj.weight [16, 16]", second + "ffn_norm.weight [16]",
                  second + "feed_forward.gate.weight [4, 16]", second + "feed_forward.expert_bias [4]",
                  there + "w1.weight [12, 16]", there + "w3.weight [12, 16]", there + "w2.weight [16, 12]"));
  const DiskNames names("lfm2", {{first + "conv.conv.weight", 16, 3}}, {});
  EXPECT_EQ(names.place(first + "conv.conv.weight"), (DiskPlace{first + "conv.conv.weight", 0, 3}));
}

// Of the second of three experts: two rows of gate and up, and four columns.
TEST(DiskNames, PutExpertsOneBehindTheOther) {
  std::vector<TensorShape> shapes;
  for (int expert = 0; expert < 3; ++expert) {
    const std::string name = str("a.mlp.experts.", expert, ".");
    for (const char* up : {"gate_proj", "up_proj"})
      shapes.push_back({name + up + ".weight", 2, 4}), shapes.push_back({name + up + ".bias", 1, 2});
    shapes.push_back({name + "down_proj.weight", 4, 2}), shapes.push_back({name + "down_proj.bias", 1, 4});
  }
  const DiskNames llama4("llama4_text", shapes, {}), gpt_oss("gpt_oss", shapes, {});
  const std::string own = "a.mlp.experts.1.", there = "a.feed_forward.experts.", also = "a.mlp.experts.";
  EXPECT_EQ(llama4.place(own + "gate_proj.weight"), (DiskPlace{there + "gate_up_proj", 16, 1, 4}));
  EXPECT_EQ(llama4.place(own + "up_proj.weight"), (DiskPlace{there + "gate_up_proj", 18, 1, 4}));
  EXPECT_EQ(llama4.place(own + "down_proj.weight"), (DiskPlace{there + "down_proj", 8, 1, 4}));
  EXPECT_EQ(gpt_oss.place(own + "gate_proj.weight"), (DiskPlace{also + "gate_up_proj", 16, 2, 4}));
  EXPECT_EQ(gpt_oss.place(own + "up_proj.weight"), (DiskPlace{also + "gate_up_proj", 17, 2, 4}));
  EXPECT_EQ(gpt_oss.place(own + "gate_proj.bias"), (DiskPlace{also + "gate_up_proj_bias", 4, 0, 2}));
  EXPECT_EQ(gpt_oss.place(own + "up_proj.bias"), (DiskPlace{also + "gate_up_proj_bias", 5, 0, 2}));
  EXPECT_EQ(gpt_oss.place(own + "down_proj.bias"), (DiskPlace{also + "down_proj_bias", 4, 0, 1}));
}

// Of each key head (two of two elements, with two value heads of three) its queries, keys, values and gates;
// and of each head of attention (three of two elements) its queries and gates.
TEST(DiskNames, PutHeadsOfRecurrencesOneBelowTheOther) {
  Transformer model;
  model.recurrence = Recurrence{RecurrenceRule::delta, 2, 4, 2, 3, 4, false};
  model.gated_attention = true, model.q_heads = 3, model.head_dim = 2;
  const std::string own = "a.linear_attn.", attention = "a.self_attn.";
  const DiskNames names("qwen3_next",
                        {{own + "in_proj_qkv.weight", 20, 5},
                         {own + "in_proj_z.weight", 12, 5},
                         {own + "in_proj_b.weight", 4, 5},
                         {own + "in_proj_a.weight", 4, 5},
                         {own + "conv1d.weight", 20, 4},
                         {own + "norm.weight", 1, 3},
                         {attention + "q_proj.weight", 6, 5},
                         {attention + "gate_proj.weight", 6, 5},
                         {attention + "q_proj.bias", 1, 6},
                         {attention + "gate_proj.bias", 1, 6},
                         {attention + "k_proj.weight", 2, 5}},
                        model);
  using Stretches = std::vector<DiskPlace::Rows>;
  EXPECT_EQ(names.place(own + "in_proj_qkv.weight").stretches,
            (Stretches{{0, 0}, {2, 80}, {4, 10}, {6, 90}, {8, 20}, {14, 100}}));
  EXPECT_EQ(names.place(own + "in_proj_z.weight").stretches, (Stretches{{0, 50}, {6, 130}}));
  EXPECT_EQ(names.place(own + "in_proj_b.weight").stretches, (Stretches{{0, 0}, {2, 20}}));
  EXPECT_EQ(names.place(own + "in_proj_a.weight").stretches, (Stretches{{0, 10}, {2, 30}}));
  EXPECT_EQ(names.place(own + "conv1d.weight"), (DiskPlace{own + "conv1d.weight", 0, 4}));
  EXPECT_EQ(names.place(attention + "q_proj.weight").stretches, (Stretches{{0, 0}, {2, 20}, {4, 40}}));
  EXPECT_EQ(names.place(attention + "gate_proj.weight").stretches, (Stretches{{0, 10}, {2, 30}, {4, 50}}));
  EXPECT_EQ(names.place(attention + "q_proj.bias").stretches, (Stretches{{0, 0}, {2, 4}, {4, 8}}));
  EXPECT_EQ(names.place(attention + "gate_proj.bias").stretches, (Stretches{{0, 2}, {2, 6}, {4, 10}}));
  std::vector<std::string> tensors;
  for (const DiskTensor& tensor : names.tensors())
    tensors.push_back(str(tensor.tensor, " ", join(tensor.shape, "x")));
  EXPECT_THAT(tensors, ElementsAre(own + "in_proj_qkvz.weight 32x5", own + "in_proj_ba.weight 8x5",
                                   own + "conv1d.weight 20x1x4", own + "norm.weight 3",
                                   attention + "q_proj.weight 12x5", attention + "q_proj.bias 12",
                                   attention + "k_proj.weight 2x5"));
}

// Queries, keys and values lie one below the other, whatever their order in the model; so do gates and what
// they multiply.
TEST(DiskNames, PutTensorsOneBelowTheOther) {
  const DiskNames names("phi3",
                        {{"a.self_attn.v_proj.weight", 2, 5},
                         {"a.self_attn.q_proj.weight", 4, 5},
                         {"a.mlp.up_proj.weight", 3, 5},
                         {"a.self_attn.k_proj.weight", 2, 5},
                         {"a.mlp.gate_proj.weight", 3, 5},
                         {"a.norm.weight", 1, 5}},
                        {});
  EXPECT_EQ(names.place("a.self_attn.q_proj.weight"), (DiskPlace{"a.self_attn.qkv_proj.weight", 0, 5}));
  EXPECT_EQ(names.place("a.self_attn.k_proj.weight"), (DiskPlace{"a.self_attn.qkv_proj.weight", 20, 5}));
  EXPECT_EQ(names.place("a.self_attn.v_proj.weight"), (DiskPlace{"a.self_attn.qkv_proj.weight", 30, 5}));
  EXPECT_EQ(names.place("a.mlp.gate_proj.weight"), (DiskPlace{"a.mlp.gate_up_proj.weight", 0, 5}));
  EXPECT_EQ(names.place("a.mlp.up_proj.weight"), (DiskPlace{"a.mlp.gate_up_proj.weight", 15, 5}));
  EXPECT_EQ(names.place("a.norm.weight"), (DiskPlace{"a.norm.weight", 0, 5}));
  std::vector<std::string> tensors;
  for (const DiskTensor& tensor : names.tensors())
    tensors.push_back(str(tensor.tensor, " ", join(tensor.shape, "x")));
  EXPECT_THAT(tensors, ElementsAre("a.self_attn.qkv_proj.weight 8x5", "a.mlp.gate_up_proj.weight 6x5",
                                   "a.norm.weight 5"));
}

}  // namespace
}  // namespace cp
