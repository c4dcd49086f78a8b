#include "shared/plan/cudnn_abilities.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp {
namespace {

using Ability = CudnnAbility;
using Mask = FusedShape::Mask;

FusedShape call(bool backward, std::int64_t q_len, std::int64_t k_len, std::int64_t head_dim = 128) {
  FusedShape shape;
  shape.backward = backward;
  shape.q_len = q_len;
  shape.k_len = k_len;
  shape.q_heads = shape.kv_heads = 4;
  shape.head_dim = shape.v_head_dim = head_dim;
  shape.mask = Mask::causal;
  return shape;
}

// What a version lacks for a call, as the abilities.
std::vector<Ability> lacks(CudnnVersion version, const FusedShape& shape, int sm,
                           bool deterministic = false) {
  std::vector<Ability> found;
  for (const CudnnFact* fact : cudnn_lacks(version, cudnn_needs(shape, sm, deterministic)))
    found.push_back(fact->ability);
  return found;
}

TEST(CudnnAbilities, TheTableIsInTheOrderOfItsNames) {
  std::size_t at = 0;
  for (const CudnnFact& fact : cudnn_facts()) {
    EXPECT_EQ(static_cast<std::size_t>(fact.ability), at++) << fact.what;
    EXPECT_FALSE(cudnn_can(fact.since - 1, fact.ability)) << fact.what;
    EXPECT_TRUE(cudnn_can(fact.since, fact.ability) || !fact.but_not.empty()) << fact.what;
    for (const CudnnVersion lost : fact.but_not) {
      EXPECT_GE(lost, fact.since) << fact.what;
      EXPECT_FALSE(cudnn_can(lost, fact.ability)) << fact.what;
    }
    EXPECT_TRUE(cudnn_can(92800, fact.ability)) << fact.what;
  }
}

TEST(CudnnAbilities, TheDefectOfBackwardIsThatOfOddNumbersOfKeysAlone) {
  const std::vector<Ability> defect = {Ability::backward_of_any_key_count};
  for (const CudnnVersion version : {90800, 91002, 91301, 91500}) {
    EXPECT_EQ(lacks(version, call(true, 1000, 1001), 90), defect) << version;
    EXPECT_TRUE(lacks(version, call(true, 1000, 1024), 90).empty()) << version;
    EXPECT_TRUE(lacks(version, call(false, 1000, 1001), 90).empty()) << version;
    FusedShape packed = call(true, 1000, 1001);
    packed.documents = {{500, 501}, {500, 500}};
    if (version >= 91002) {
      EXPECT_TRUE(lacks(version, packed, 90).empty()) << version;
    } else {
      EXPECT_EQ(lacks(version, packed, 90), std::vector{Ability::packed_backward}) << version;
    }
    packed.backward = false;
    EXPECT_TRUE(lacks(version, packed, 90).empty()) << version;
  }
  for (const CudnnVersion version : {91501, 91900, 92800})
    EXPECT_TRUE(lacks(version, call(true, 1000, 1001), 90).empty()) << version;
}

TEST(CudnnAbilities, WhatDependsOnTheGpu) {
  const FusedShape wide = call(false, 512, 512, 256);
  EXPECT_EQ(lacks(90800, wide, 86), std::vector{Ability::wide_heads_forward_sm80});
  EXPECT_EQ(lacks(90800, wide, 103), std::vector{Ability::wide_heads_forward_sm100});
  EXPECT_TRUE(lacks(90800, wide, 90).empty());
  EXPECT_TRUE(lacks(90900, wide, 100).empty());
  EXPECT_EQ(lacks(90900, wide, 120), std::vector{Ability::wide_heads_forward_sm120});
  EXPECT_TRUE(lacks(91002, wide, 121).empty());
  EXPECT_EQ(lacks(91700, call(true, 512, 512), 100, true),
            std::vector{Ability::deterministic_backward_sm100});
  EXPECT_TRUE(lacks(91700, call(true, 512, 512), 90, true).empty());
  FusedShape uneven = call(true, 512, 512, 160);
  uneven.v_head_dim = 96;
  EXPECT_EQ(lacks(91200, uneven, 90), std::vector{Ability::uneven_heads_backward_sm90});
  EXPECT_TRUE(lacks(91300, uneven, 90).empty());
}

TEST(CudnnAbilities, ASingleQueryIsThatOfTheLongestDocument) {
  FusedShape decode = call(false, 1, 512);
  EXPECT_EQ(lacks(90900, decode, 90), std::vector{Ability::masked_single_query});
  decode.mask = Mask::full;
  EXPECT_TRUE(lacks(90900, decode, 90).empty());
  FusedShape packed = call(false, 3, 40);
  packed.documents = {{1, 20}, {2, 20}};
  EXPECT_TRUE(lacks(90900, packed, 90).empty());
  packed.documents = {{1, 20}, {1, 20}};
  EXPECT_EQ(lacks(90900, packed, 90), std::vector{Ability::masked_single_query});
}

TEST(CudnnAbilities, AVersionMayLoseAnAbilityAgain) {
  EXPECT_FALSE(cudnn_can(91001, Ability::left_bound_alone));
  EXPECT_TRUE(cudnn_can(91400, Ability::left_bound_alone));
  EXPECT_FALSE(cudnn_can(91400, Ability::left_bound_alone_above_1024_keys));
  EXPECT_TRUE(cudnn_can(91500, Ability::left_bound_alone_above_1024_keys));
}

TEST(CudnnAbilities, WordsSayWhatIsThereWhatIsNeededAndWhatDoesInstead) {
  const auto lacking = cudnn_lacks(90800, cudnn_needs(call(true, 1000, 1001), 90));
  ASSERT_EQ(lacking.size(), 1U);
  EXPECT_EQ(
      to_text(*lacking.front(), 90800),
      "backward over a number of keys that 128 does not divide needs cuDNN 9.15.1 or later, and this is "
      "9.8.0; put the folder of another one first in LD_LIBRARY_PATH, or make the number of keys of each "
      "call a multiple of 128, or plan with the exact engine");
  EXPECT_EQ(
      to_text(cudnn_facts()[static_cast<std::size_t>(Ability::forward)], 91000),
      "forward attention needs cuDNN 9.8.0 or later without 9.10.0, 9.10.1, and this is 9.10.0; put the "
      "folder of another one first in LD_LIBRARY_PATH, or plan with the exact engine");
}

}  // namespace
}  // namespace cp
