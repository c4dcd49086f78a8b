#include "sim/proof/step/key_traffic.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proof/small_steps.h"

namespace cp::sim {
namespace {

using testing::dense_model;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kOddLength;
using testing::request_of;

std::vector<LayerTraffic> traffic(const Transformer& model, const std::string& layout) {
  const StepRequest request = request_of(model, layout);
  return key_traffic(request, [&](StepPart part, int stage) { return step_plans(request, part, stage); });
}

// Of 29 rows the first rank has 15.
constexpr std::int64_t kFirst = 15, kRow = 8 * 4;  // a row of a head, f32
static_assert(kFirst + 14 == kOddLength);

TEST(KeyTraffic, OfARingIsWhatTheSecondRankSees) {
  for (const char* layout : {"cp=2,strategy=ring", "cp=2,strategy=all_gather", "cp=2,strategy=need_only"}) {
    const std::vector<LayerTraffic> layers = traffic(dense_model(), layout);
    ASSERT_EQ(layers.size(), 4U);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      EXPECT_EQ(layers[layer].layer, static_cast<std::int64_t>(layer));
      ASSERT_EQ(layers[layer].moves.size(), 1U) << layout;
      // K and V of two heads; the first rank's queries see none of the second's keys.
      const KeyMove& move = layers[layer].moves.front();
      EXPECT_EQ(move.kv_bytes, kFirst * 2 * 2 * kRow) << layout;
      EXPECT_EQ(move.q_bytes, 0);
      EXPECT_EQ(move.group, "ring");
      EXPECT_THAT(move.ranks, ElementsAre(ElementsAre(0, 1)));
    }
  }
}

// Each rank gets, of its half of the heads, the rows of the other: two query heads and a kv head.
TEST(KeyTraffic, OfUlyssesIsTheRowsOfOthersOfTheOwnHeads) {
  for (const LayerTraffic& layer : traffic(dense_model(), "cp=2,strategy=ulysses,dp_shard=2")) {
    std::int64_t kv = 0, q = 0;
    for (const KeyMove& move : layer.moves) {
      kv += move.kv_bytes, q += move.q_bytes;
      EXPECT_EQ(move.group, "ulysses");
      EXPECT_THAT(move.ranks, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
    }
    EXPECT_EQ(kv, 2 * kOddLength * 2 * kRow);
    EXPECT_EQ(q, 2 * kOddLength * 2 * kRow);
  }
}

TEST(KeyTraffic, OfPassQAreQueriesAlone) {
  for (const LayerTraffic& layer : traffic(dense_model(), "cp=2,strategy=pass_q")) {
    ASSERT_EQ(layer.moves.size(), 1U);
    EXPECT_EQ(layer.moves.front().kv_bytes, 0);
    EXPECT_GT(layer.moves.front().q_bytes, 0);
  }
}

// A window of four keys reaches three rows of the rank before; one of a single key none: context parallelism
// has nothing to do. Stages and loops over layers count on.
TEST(KeyTraffic, OfWindowsIsWhatTheyReach) {
  Transformer model = dense_model();
  const LayerKind full, four{4, {}, false, Mixer::attention, true}, one{1, {}, false, Mixer::attention, true};
  set_layers(model, {four, full, one, full});
  for (const char* layout :
       {"cp=2,strategy=ring", "cp=2,pp=2,strategy=ring", "cp=2,pp=2,virtual_stages=2,strategy=ring"}) {
    const std::vector<LayerTraffic> layers = traffic(model, layout);
    ASSERT_EQ(layers.size(), 4U);
    ASSERT_EQ(layers[0].moves.size(), 1U) << layout;
    EXPECT_EQ(layers[0].moves[0].kv_bytes, 3 * 2 * 2 * kRow) << layout;
    ASSERT_EQ(layers[1].moves.size(), 1U);
    EXPECT_EQ(layers[1].moves[0].kv_bytes, kFirst * 2 * 2 * kRow) << layout;
    EXPECT_THAT(layers[2].moves, IsEmpty()) << layout;
    ASSERT_EQ(layers[3].moves.size(), 1U);
    EXPECT_EQ(layers[3].moves[0].kv_bytes, kFirst * 2 * 2 * kRow) << layout;
  }
}

// Where latent rows travel it is them that count: their parts of keys and values, and the rotated part.
TEST(KeyTraffic, OfLatentRowsIsTheRows) {
  Transformer model = dense_model();
  model.kv_heads = model.q_heads, model.latent = Latent{0, 6, 2, 8};
  for (const LayerTraffic& layer : traffic(model, "cp=2,strategy=ring,keys=latent")) {
    ASSERT_EQ(layer.moves.size(), 1U);
    EXPECT_EQ(layer.moves.front().kv_bytes, kFirst * (6 + 2) * 4);
  }
}

TEST(KeyTraffic, IsNothingWithoutContextParallelism) {
  for (const LayerTraffic& layer : traffic(dense_model(), "tp=2,dp_shard=2"))
    EXPECT_THAT(layer.moves, IsEmpty());
}

}  // namespace
}  // namespace cp::sim
