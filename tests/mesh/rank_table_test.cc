#include "shared/mesh/rank_table.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"

namespace cp {
namespace {

// One list for each way of storing positions, and the borders between them.
const std::vector<std::vector<Rank>> kLists = {
    {0},           // consecutive
    {7},           //
    {0, 1, 2, 3},  //
    {5, 6, 7},     //
    {0, 2, 1, 3},  // dense
    {3, 2, 1, 0},  //
    {0, 127},      // dense: a spread of 64
    {0, 128},      // sparse
    {2'000'000'000, 0, 1'000'000'000},
    {2'147'483'647, 0},
};

TEST(RankTable, FindsEveryRankAtItsPosition) {
  for (const std::vector<Rank>& ranks : kLists) {
    const RankTable table(ranks);
    for (int position = 0; position < table.size(); ++position) {
      EXPECT_EQ(table.find(ranks[static_cast<std::size_t>(position)]), position)
          << ::testing::PrintToString(ranks);
    }
  }
}

TEST(RankTable, DoesNotFindStrangers) {
  for (const std::vector<Rank>& ranks : kLists) {
    const RankTable table(ranks);
    for (const Rank rank : {-2'147'483'647 - 1, -1, 0, 1, 4, 6, 8, 64, 126, 127, 128, 129, 1'999'999'999,
                            2'147'483'646, 2'147'483'647}) {
      if (::testing::Value(ranks, ::testing::Contains(rank))) continue;
      EXPECT_EQ(table.find(rank), RankTable::kAbsent) << rank << " in " << ::testing::PrintToString(ranks);
    }
  }
}

TEST(RankTable, RefusesListsThatNameNoSetOfRanks) {
  EXPECT_THROW(RankTable({}), InvalidInput);
  EXPECT_THROW(RankTable({0, -1}), InvalidInput);
  EXPECT_THROW(RankTable({0, 0}), InvalidInput);
  EXPECT_THROW(RankTable({0, 1, 2, 1}), InvalidInput);
  EXPECT_THROW(RankTable({0, 1'000'000, 0}), InvalidInput);
}

TEST(RankTable, NamesBothPositionsOfARepeatedRank) {
  try {
    RankTable({4, 9, 5, 9});
    FAIL() << "accepted a repeated rank";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 9 comes twice, at positions 1 and 3"));
  }
}

}  // namespace
}  // namespace cp
