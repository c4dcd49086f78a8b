#include "sim/planner/search/ranking.h"

#include <gtest/gtest.h>

namespace cp::sim {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

Candidate candidate(int tp, double step_us, std::int64_t gib) {
  Candidate of;
  of.layout.tp = tp;
  of.step_us = step_us, of.low_us = 0.9 * step_us, of.high_us = 1.1 * step_us;
  of.memory.activations = gib * kGiB;
  of.usable_bytes = 80 * kGiB;
  return of;
}

std::vector<int> order(std::vector<Candidate> candidates) {
  rank_candidates(candidates);
  std::vector<int> tps;
  for (const Candidate& of : candidates) tps.push_back(of.layout.tp);
  return tps;
}

TEST(Ranking, OfTiesTheFreerComesFirst) {
  EXPECT_EQ(order({candidate(1, 100, 79), candidate(2, 100.1, 70), candidate(4, 100.4, 62)}),
            (std::vector<int>{4, 2, 1}));
}

TEST(Ranking, MoreThanATieIsAMatterOfTime) {
  EXPECT_EQ(order({candidate(1, 100, 79), candidate(2, 100.6, 20)}), (std::vector<int>{1, 2}));
}

// Less than a twentieth of the memory is not worth a tie.
TEST(Ranking, OfTiesThatTakeAsMuchTheFasterComesFirst) {
  EXPECT_EQ(order({candidate(2, 100.3, 61), candidate(1, 100, 62)}), (std::vector<int>{1, 2}));
}

TEST(Ranking, TiesAreCountedFromTheFastest) {
  // The third ties with the second alone.
  EXPECT_EQ(order({candidate(1, 100, 79), candidate(2, 100.4, 70), candidate(4, 100.8, 20)}),
            (std::vector<int>{2, 1, 4}));
}

TEST(Candidate, LikelyFitsWithTheMemoryThatRunsTook) {
  Candidate of = candidate(1, 100, 78);
  of.memory_high_bytes = 79 * kGiB;
  EXPECT_TRUE(of.fits() && of.likely_fits());
  EXPECT_EQ(of.left_bytes(), 2 * kGiB);
  of.memory_high_bytes = 81 * kGiB;
  EXPECT_TRUE(of.fits());
  EXPECT_FALSE(of.likely_fits());
  of.memory.activations = 81 * kGiB;
  EXPECT_FALSE(of.fits());
}

}  // namespace
}  // namespace cp::sim
