#include "traces/checkpoints/disk_names.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
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
  for (const TensorShape& tensor : names.tensors()) {
    if (tensor.tensor.find(".layers.1.") != std::string::npos) continue;
    const std::string shape = tensor.rows == 1 ? str(tensor.columns) : str(tensor.rows, ", ", tensor.columns);
    first.insert(str(tensor.tensor, " [", shape, "]"));
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
  return DiskNames(family, tensors_of_model(model));
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
}

// Queries, keys and values lie one below the other, whatever their order in the model; so do gates and what
// they multiply.
TEST(DiskNames, PutTensorsOneBelowTheOther) {
  const DiskNames names("phi3", {{"a.self_attn.v_proj.weight", 2, 5},
                                 {"a.self_attn.q_proj.weight", 4, 5},
                                 {"a.mlp.up_proj.weight", 3, 5},
                                 {"a.self_attn.k_proj.weight", 2, 5},
                                 {"a.mlp.gate_proj.weight", 3, 5},
                                 {"a.norm.weight", 1, 5}});
  EXPECT_EQ(names.place("a.self_attn.q_proj.weight"), (DiskPlace{"a.self_attn.qkv_proj.weight", 0}));
  EXPECT_EQ(names.place("a.self_attn.k_proj.weight"), (DiskPlace{"a.self_attn.qkv_proj.weight", 20}));
  EXPECT_EQ(names.place("a.self_attn.v_proj.weight"), (DiskPlace{"a.self_attn.qkv_proj.weight", 30}));
  EXPECT_EQ(names.place("a.mlp.gate_proj.weight"), (DiskPlace{"a.mlp.gate_up_proj.weight", 0}));
  EXPECT_EQ(names.place("a.mlp.up_proj.weight"), (DiskPlace{"a.mlp.gate_up_proj.weight", 15}));
  EXPECT_EQ(names.place("a.norm.weight"), (DiskPlace{"a.norm.weight", 0}));
  std::vector<std::string> tensors;
  for (const TensorShape& tensor : names.tensors())
    tensors.push_back(str(tensor.tensor, " ", tensor.rows, "x", tensor.columns));
  EXPECT_THAT(tensors, ElementsAre("a.self_attn.qkv_proj.weight 8x5", "a.mlp.gate_up_proj.weight 6x5",
                                   "a.norm.weight 1x5"));
}

}  // namespace
}  // namespace cp
