#include "shared/transformer/tensor_places.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/rank_groups.h"
#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp {
namespace {

using ::testing::HasSubstr;

// How many ranks own each element of each tensor: [row, column] of all blocks that are owned.
using Owners = std::map<std::string, std::map<std::pair<std::int64_t, std::int64_t>, int>>;

// The block that an element of a piece is of, or null.
const TensorBlock* block_of(const std::vector<TensorBlock>& blocks, std::int64_t at) {
  for (const TensorBlock& block : blocks) {
    if (block.begin <= at && at < block.begin + block.rows * block.columns) return &block;
  }
  return nullptr;
}

void add_owned(const UnitTensors& of, Owners& owners) {
  for (std::int64_t i = 0; i < of.num_owned(); ++i) {
    const auto [piece, at] = of.owned(i);
    if (piece >= of.unit.pieces || at >= of.unit.numel) continue;
    const TensorBlock* const block = block_of(of.pieces[idx(piece)], at);
    if (block == nullptr) continue;
    const std::int64_t in_block = at - block->begin;
    ++owners[block->tensor]
            [{block->first_row + in_block / block->columns, block->first_column + in_block % block->columns}];
  }
}

Owners owners_of(const StepRequest& request) {
  Owners owners;
  const int stages = request.layout.pp * request.layout.virtual_stages;
  for (Rank rank = 0; rank < request.layout.world(); ++rank) {
    for (int stage = RankGroups(request.layout, rank).pp(); stage < stages; stage += request.layout.pp) {
      for (const UnitTensors& unit : tensors_of_stage(request, stage, rank)) add_owned(unit, owners);
    }
  }
  return owners;
}

// Every parameter is owned, and the elements of one tensor by equally many ranks: replicas, and the tp ranks
// that hold it alike.
RC_GTEST_PROP(TensorPlaces, OwnEachParameter, ()) {
  const StepRequest request = testing::any_request();
  RC_PRE(request.workload.phase == Phase::training);
  showValue(request, RC_LOG());
  std::set<std::string> constants;
  for (const TensorShape& shape : tensors_of_model(request.model)) {
    if (!shape.trained) constants.insert(shape.tensor);
  }
  std::int64_t numel = 0;
  for (const auto& [tensor, elements] : owners_of(request)) {
    const int owners = elements.begin()->second;
    RC_LOG() << "\n" << tensor << ": " << elements.size() << " elements, " << owners << " owners";
    std::int64_t rows = 0, columns = 0;
    for (const auto& [at, count] : elements) {
      rows = std::max(rows, at.first + 1), columns = std::max(columns, at.second + 1);
      RC_ASSERT(count == owners);
    }
    RC_ASSERT(rows * columns == std::ssize(elements));  // no holes
    if (!constants.contains(tensor)) numel += rows * columns;
  }
  RC_ASSERT(numel == parameter_counts(request.model).total);
}

// Of a piece nothing is left over but room for tokens that there are not, and nothing is two tensors'.
RC_GTEST_PROP(TensorPlaces, FillPieces, ()) {
  const StepRequest request = testing::any_request();
  RC_PRE(request.workload.phase == Phase::training);
  showValue(request, RC_LOG());
  for (const UnitTensors& of : tensors_of_stage(request, 0, 0)) {
    RC_ASSERT(std::ssize(of.pieces) == of.unit.pieces);
    const bool has_table = of.unit.name == "embedding" || of.unit.name == "head";
    for (const std::vector<TensorBlock>& blocks : of.pieces) {
      std::int64_t end = 0;
      for (const TensorBlock& block : blocks) {
        RC_ASSERT(block.begin == end);
        end += block.rows * block.columns;
      }
      RC_ASSERT((has_table ? end <= of.unit.numel : end == of.unit.numel));
    }
  }
}

std::string text_of(const TensorBlock& block) {
  return str(block.tensor, " ", block.begin, " [", block.rows, " x ", block.columns, "] from ",
             block.first_row, ", ", block.first_column);
}

// Heads of 4: rank 1 of two has q heads 2 and 3, kv head 1, and half of all columns of the MLP.
TEST(TensorPlaces, OfATpRankByHand) {
  StepRequest request = testing::small_request("tp=2");
  Transformer& model = request.model;
  model.hidden = 8, model.layers = 1, model.q_heads = 4, model.kv_heads = 2, model.head_dim = 4;
  model.intermediate = 6, model.vocab = 5, model.qkv_bias = true;
  const std::vector<UnitTensors> units = tensors_of_stage(request, 0, 1);
  std::vector<std::string> texts;
  for (const UnitTensors& unit : units) {
    for (const TensorBlock& block : unit.pieces.front()) texts.push_back(text_of(block));
  }
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(texts, ::testing::ElementsAre(layer + "input_layernorm.weight 0 [1 x 8] from 0, 0",
                                            layer + "post_attention_layernorm.weight 8 [1 x 8] from 0, 0",
                                            layer + "self_attn.q_proj.weight 16 [8 x 8] from 8, 0",
                                            layer + "self_attn.k_proj.weight 80 [4 x 8] from 4, 0",
                                            layer + "self_attn.v_proj.weight 112 [4 x 8] from 4, 0",
                                            layer + "self_attn.q_proj.bias 144 [1 x 8] from 0, 8",
                                            layer + "self_attn.k_proj.bias 152 [1 x 4] from 0, 4",
                                            layer + "self_attn.v_proj.bias 156 [1 x 4] from 0, 4",
                                            layer + "self_attn.o_proj.weight 160 [8 x 8] from 0, 8",
                                            layer + "mlp.gate_proj.weight 224 [3 x 8] from 3, 0",
                                            layer + "mlp.up_proj.weight 248 [3 x 8] from 3, 0",
                                            layer + "mlp.down_proj.weight 272 [8 x 3] from 0, 3",
                                            // Rank 0 has the tokens 0 to 2.
                                            "model.embed_tokens.weight 0 [2 x 8] from 3, 0",
                                            "model.norm.weight 0 [1 x 8] from 0, 0",
                                            "lm_head.weight 8 [2 x 8] from 3, 0"));
}

// Those of the rank's stage, whole, whatever splits the parameters; prediction layers come last.
TEST(TensorPlaces, OfCorrectionsByHand) {
  StepRequest request = testing::small_request("tp=2,dp_shard=2,cp=2,pp=2,strategy=ring");
  Transformer& model = request.model;
  model.layers = 5, model.prediction_layers = 1;
  model.experts = Experts{4, 2, 24}, model.experts->corrects_scores = true;
  set_layers(model, {{}, {{}, {}, true}, {}, {{}, {}, true}, {}});
  const Rank self = 13;
  const int stage = RankGroups(request.layout, self).pp();
  ASSERT_EQ(stage, 1);
  const std::vector<UnitTensors> units = tensors_of_stage(request, stage, self);
  const UnitTensors& correction = units.back();
  EXPECT_FALSE(correction.trained);
  EXPECT_EQ(correction.unit.name, kScoreCorrection);
  EXPECT_THAT(correction.unit.replicas, ::testing::ElementsAre(9, 11, 13, 15));
  std::vector<std::string> texts;
  for (const std::vector<TensorBlock>& piece : correction.pieces) texts.push_back(text_of(piece.front()));
  EXPECT_THAT(texts,
              ::testing::ElementsAre("model.layers.4.mlp.gate.e_score_correction_bias 0 [1 x 4] from 0, 0",
                                     "model.layers.5.mlp.gate.e_score_correction_bias 0 [1 x 4] from 0, 0"));
}

TEST(TensorPlaces, OfAStageThatTheRankLacksAreRefused) {
  const StepRequest request = testing::small_request("pp=2");
  EXPECT_THAT(testing::message_of([&] { tensors_of_stage(request, 1, 0); }),
              HasSubstr("rank 0 does not hold stage 1; it holds stages 0 + i * 2"));
}

}  // namespace
}  // namespace cp
