// Which choices of experts are dropped, counted by hand.
#include "sim/proof/step/dropped_tokens.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proof/small_steps.h"

namespace cp::sim {
namespace {

// Of eight rows, each of which chooses one of four experts.
std::vector<bool> kept_of(const std::string& layout, double imbalance, std::vector<std::int64_t> chosen) {
  Transformer model = testing::model_of_experts();
  model.experts->top_k = 1;
  const StepRequest request =
      proof_request(model, parse_parallel_layout(layout), {8, DType::f32, {}, imbalance});
  return drops_of(request)({0, 0, 1, 8, 4, 1, std::move(chosen)});
}

// Eight slots, two for each expert.
TEST(DroppedTokens, AreThoseForWhichAnExpertHasNoSlotLeft) {
  EXPECT_EQ(kept_of("tp=1", 1, {0, 0, 0, 1, 2, 0, 1, 1}),
            (std::vector<bool>{true, true, false, true, true, false, true, false}));
}

// Twelve slots, three for each.
TEST(DroppedTokens, AreFewerWithMoreRoom) {
  EXPECT_EQ(kept_of("tp=1", 1.5, {0, 0, 0, 1, 2, 0, 1, 1}),
            (std::vector<bool>{true, true, true, true, true, false, true, true}));
}

// Each rank has four rows, and slots of its own: one for each expert. By head and tail rank 0 has the rows 0,
// 1, 6 and 7.
TEST(DroppedTokens, AreCountedByTheRowsOfARank) {
  const std::vector<std::int64_t> chosen = {0, 0, 0, 1, 2, 0, 1, 1};
  EXPECT_EQ(kept_of("cp=2,strategy=ring,balance=contiguous", 1, chosen),
            (std::vector<bool>{true, false, false, true, true, true, true, false}));
  EXPECT_EQ(kept_of("cp=2,strategy=ring,balance=head_tail", 1, chosen),
            (std::vector<bool>{true, false, true, true, true, false, true, false}));
}

// A rank sends blocks of two slots to either ep rank. Its two experts share the four that arrive, two each,
// of which each sender may fill one; with twice the room, two.
TEST(DroppedTokens, AreCountedByTheShareOfARankAtAnExpert) {
  const std::string layout = "cp=2,ep=2,strategy=ring,balance=contiguous";
  const std::vector<std::int64_t> chosen = {0, 0, 0, 1, 3, 3, 3, 3};
  EXPECT_EQ(kept_of(layout, 1, chosen),
            (std::vector<bool>{true, false, false, true, true, false, false, false}));
  EXPECT_EQ(kept_of(layout, 2, chosen),
            (std::vector<bool>{true, true, false, true, true, true, false, false}));
}

}  // namespace
}  // namespace cp::sim
