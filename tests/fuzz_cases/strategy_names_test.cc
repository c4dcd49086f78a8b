// That the fuzzer draws and counts every strategy: a core that is added has its tests in the tables of
// tests/context_parallel by its row, and here by its name in draw_attention.cc and features.cc.
#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/context_parallel/strategy.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/features.h"

namespace cp::sim {
namespace {

using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAreArray;

TEST(FuzzStrategies, AreAllDrawn) {
  std::set<std::string> drawn;
  for (std::uint64_t number = 0; number < 40 * kCasesOfABatch; ++number)
    drawn.insert(draw_case(FuzzTarget::attention, 1, number).attention().strategy());
  EXPECT_THAT(drawn, IsSupersetOf(strategy_names()));
}

TEST(FuzzStrategies, AreAllFeatures) {
  const auto groups = feature_groups(proto::FuzzCase::kAttention);
  const auto strategies =
      std::find_if(groups.begin(), groups.end(), [](const auto& group) { return group.name == "strategy"; });
  ASSERT_NE(strategies, groups.end());
  EXPECT_THAT(strategies->values, UnorderedElementsAreArray(strategy_names()));
}

}  // namespace
}  // namespace cp::sim
