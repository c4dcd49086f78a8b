#include "shared/placement/index_set.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/placement/huge.h"
#include "tests/placement/index_set_generator.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kHuge;

TEST(IndexSet, RangeIsOneRunOrEmpty) {
  EXPECT_EQ(index_range(3, 8), (IndexSet{{3, 5, 5, 1}}));
  EXPECT_THAT(index_range(3, 3), IsEmpty());
  EXPECT_THAT(index_range(4, 3), IsEmpty());
}

TEST(IndexSet, SizeCountsAllRuns) {
  EXPECT_EQ(size({}), 0);
  EXPECT_EQ(size({{8, 4, 4, 1}, {0, 2, 3, 2}}), 8);
  EXPECT_EQ(size({{0, 2, 4, kHuge}}), 2 * kHuge);
}

TEST(IndexSet, CanonicalMergesWhatContinues) {
  EXPECT_EQ(canonical({{0, 2, 2, 5}}), (IndexSet{{0, 10, 10, 1}}));
  EXPECT_EQ(canonical({{0, 2, 99, 1}}), (IndexSet{{0, 2, 2, 1}}));
  EXPECT_EQ(canonical({{0, 4, 4, 1}, {4, 4, 4, 1}}), (IndexSet{{0, 8, 8, 1}}));
  EXPECT_EQ(canonical({{0, 1, 1, 1}, {8, 1, 1, 1}, {16, 1, 8, 3}}), (IndexSet{{0, 1, 8, 5}}));
  EXPECT_EQ(canonical({{0, 1, 4, 2}, {5, 1, 4, 2}}), (IndexSet{{0, 1, 1, 1}, {4, 2, 2, 1}, {9, 1, 1, 1}}));
}

TEST(IndexSet, CanonicalKeepsLocalOrder) {
  const IndexSet swapped = {{8, 4, 4, 1}, {0, 4, 4, 1}};
  EXPECT_EQ(canonical(swapped), swapped);
  EXPECT_FALSE(same_indices(swapped, {{0, 4, 12, 1}, {8, 4, 4, 1}}));
  EXPECT_TRUE(same_members(swapped, {{0, 4, 12, 1}, {8, 4, 4, 1}}));
  EXPECT_FALSE(same_members(swapped, {{0, 4, 12, 1}, {9, 4, 4, 1}}));
}

TEST(IndexSet, ToStringShowsRuns) {
  EXPECT_EQ(to_string(IndexSet{{0, 4, 4, 1}, {12, 4, 4, 1}}), "[0..4) [12..16)");
  EXPECT_EQ(to_string(IndexSet{{0, 2, 8, 4}}), "[0..2)+8x4");
  EXPECT_EQ(to_string(IndexSet{}), "empty");
}

TEST(IndexSet, ClipCutsBlocks) {
  EXPECT_EQ(clip({{0, 4, 8, 4}}, 2, 26), (IndexSet{{2, 2, 2, 1}, {8, 4, 8, 2}, {24, 2, 2, 1}}));
  EXPECT_THAT(clip({{0, 4, 8, 4}}, 4, 8), IsEmpty());
  EXPECT_THAT(clip({{0, 4, 8, 4}}, 9, 9), IsEmpty());
  EXPECT_EQ(clip({{5, 4, 8, 4}}, 6, 8), (IndexSet{{6, 2, 2, 1}}));
}

TEST(IndexSet, ComposeOfAlignedStripesIsOneRun) {
  // Blocks of 4 dealt to 2, then blocks of 2 of those dealt to 2: the second half of each block.
  EXPECT_EQ(compose({{0, 4, 8, 100}}, {{2, 2, 4, 100}}), (IndexSet{{2, 2, 8, 100}}));
  // Every second block.
  EXPECT_EQ(compose({{0, 4, 8, 100}}, {{4, 4, 8, 50}}), (IndexSet{{8, 4, 16, 50}}));
}

TEST(IndexSet, ComposeOfThreeLevelsExpandsOnlyTheOutermost) {
  // Each block of 8 positions covers two blocks of the base.
  EXPECT_EQ(compose({{0, 4, 8, 100}}, {{0, 8, 16, 25}}).size(), 25U);
  // Blocks of 1000 of which every second index is taken: one run for each block of the base, of which there
  // are 3.
  EXPECT_EQ(compose({{0, 1000, 5000, 3}}, {{0, 1, 2, 1500}}),
            (IndexSet{{0, 1, 2, 500}, {5000, 1, 2, 500}, {10000, 1, 2, 500}}));
}

TEST(IndexSet, ComposeDoesNotWalkOverManySmallBlocksInFewLargeOnes) {
  EXPECT_EQ(compose({{0, kHuge, 2 * kHuge, 3}}, {{0, 1, 3, kHuge}}).size(), 3U);
}

TEST(IndexSet, ComposeRefusesTooManyRuns) {
  try {
    compose({{0, 4, 8, kHuge}}, {{0, 8, 16, kHuge / 2}});
    FAIL() << "no error";
  } catch (const Infeasible& error) {
    EXPECT_THAT(error.what(), HasSubstr("[0..4)+8x1099511627776"));
    EXPECT_THAT(error.what(), HasSubstr("549755813888 runs"));
  }
}

TEST(IndexSet, FunctionsOfTheEmptySet) {
  const IndexSet set = {{0, 2, 4, 3}};
  EXPECT_THAT(canonical({}), IsEmpty());
  EXPECT_TRUE(same_indices({}, {}));
  EXPECT_FALSE(same_indices({}, set));
  EXPECT_EQ(to_local({}, 0), std::nullopt);
  EXPECT_THAT(compose(set, {}), IsEmpty());
  EXPECT_THAT(compose({}, {}), IsEmpty());
  EXPECT_EQ(intersection_size(set, {}), 0);
  EXPECT_EQ(intersection_size({}, set), 0);
  EXPECT_THAT(intersect(set, {}), IsEmpty());
  EXPECT_THAT(intersect({}, set), IsEmpty());
}

TEST(IndexSet, IntersectFoldsRegularStretches) {
  // Striped by 2 among 4 against striped by 2 among 6: they meet each 24 indices.
  const IndexSet a = {{0, 2, 8, 300}}, b = {{0, 2, 12, 200}};
  EXPECT_THAT(intersect(a, b), ElementsAre(Overlap{.run = 2,
                                                   .count = 100,
                                                   .global = 0,
                                                   .stride_global = 24,
                                                   .in_a = 0,
                                                   .stride_a = 6,
                                                   .in_b = 0,
                                                   .stride_b = 4}));
  // A contiguous shard against a striped one.
  EXPECT_THAT(intersect({{100, 50, 50, 1}}, {{2, 1, 10, 1000}}), ElementsAre(Overlap{.run = 1,
                                                                                     .count = 5,
                                                                                     .global = 102,
                                                                                     .stride_global = 10,
                                                                                     .in_a = 2,
                                                                                     .stride_a = 10,
                                                                                     .in_b = 10,
                                                                                     .stride_b = 1}));
  // Runs cut by somebody else fold again.
  EXPECT_EQ(intersect({{0, 4, 4, 1}, {4, 4, 4, 1}}, {{2, 3, 3, 1}, {5, 9, 9, 1}}).size(), 1U);
  EXPECT_EQ(intersect({{0, 1, 4, 2}, {8, 1, 4, 2}}, {{0, 16, 16, 1}}).size(), 1U);
}

TEST(IndexSet, IntersectWithoutCommonIndices) {
  EXPECT_EQ(intersection_size({{0, 2, 4, 100}}, {{2, 2, 4, 100}}), 0);
  EXPECT_THAT(intersect({{0, 2, 4, 100}}, {{2, 2, 4, 100}}), IsEmpty());
  EXPECT_EQ(intersection_size(index_range(0, 5), index_range(5, 9)), 0);
}

TEST(IndexSet, HugeDimensionsCostNoMoreThanSmallOnes) {
  const IndexSet evens = {{0, 1, 2, kHuge / 2}}, blocks = {{0, 512, 2048, kHuge / 2048}};
  EXPECT_EQ(intersection_size(evens, blocks), kHuge / 8);
  EXPECT_LE(intersect(evens, blocks).size(), 256U);
  EXPECT_EQ(to_global(evens, kHuge / 2 - 1), kHuge - 2);
  EXPECT_EQ(to_local(blocks, kHuge - 2048 + 511), kHuge / 4 - 1);
  EXPECT_EQ(to_local(blocks, kHuge - 1), std::nullopt);
  EXPECT_EQ(size(clip(evens, kHuge / 4, kHuge)), kHuge * 3 / 8);
  EXPECT_EQ(compose(evens, index_range(kHuge / 4, kHuge / 2)), (IndexSet{{kHuge / 2, 1, 2, kHuge / 4}}));
  // Strides without a common factor, near the root of the dimension: the worst case.
  const IndexSet a = {{0, 1 << 18, 1 << 20, 1 << 20}}, b = {{0, 1 << 18, (1 << 20) - 1, 1 << 20}};
  EXPECT_GT(intersection_size(a, b), 0);
  EXPECT_EQ(intersection_size(a, b), intersection_size(b, a));
}

TEST(IndexSet, StridesWhoseLcmOverflowsMeetAtMostOnceForEachShift) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 59) - 55, kOther = (std::int64_t{1} << 59) - 1;
  const IndexSet a = {{0, 100, kStride, 8}}, b = {{0, 100, kOther, 8}};
  // Block k of b begins 54 * k after block k of a: 100, 46 indices in common, then none.
  EXPECT_EQ(intersection_size(a, b), 146);
  EXPECT_THAT(intersect(a, b), ElementsAre(Overlap{100, 1, 0, 100, 0, 100, 0, 100},
                                           Overlap{46, 1, kOther, 46, 154, 46, 100, 46}));
}

RC_GTEST_PROP(IndexSet, SizeAndPositionsAgreeWithExpansion, ()) {
  const IndexSet set = *small_index_set();
  const std::vector<std::int64_t> indices = expand(set);
  RC_ASSERT(size(set) == static_cast<std::int64_t>(indices.size()));
  std::map<std::int64_t, std::int64_t> position;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    RC_ASSERT(to_global(set, static_cast<std::int64_t>(i)) == indices[i]);
    position[indices[i]] = static_cast<std::int64_t>(i);
  }
  for (std::int64_t global = -2; global < 200; ++global) {
    const auto found = position.find(global);
    RC_ASSERT(to_local(set, global) ==
              (found == position.end() ? std::nullopt : std::optional<std::int64_t>(found->second)));
  }
}

RC_GTEST_PROP(IndexSet, CanonicalHoldsTheSameIndices, ()) {
  const IndexSet set = *small_index_set();
  const IndexSet form = canonical(set);
  RC_ASSERT(expand(form) == expand(set));
  RC_ASSERT(canonical(form) == form);
  for (const Run& run : form) {
    RC_ASSERT(run.run >= 1 && run.count >= 1);
    RC_ASSERT((run.count == 1 ? run.stride == run.run : run.stride > run.run));
  }
}

// The list as runs that begin and end at random places: another way to write the same set.
IndexSet rewritten(const std::vector<std::int64_t>& indices, std::mt19937_64& random) {
  IndexSet set;
  for (std::size_t i = 0; i < indices.size();) {
    const auto longest = static_cast<std::int64_t>(random() % 4 + 1),
               most = static_cast<std::int64_t>(random() % 4 + 1);
    const auto at = [&](std::size_t k) { return k < indices.size() ? indices[k] : -1000; };
    Run run{indices[i], 1, 1, 1};
    while (run.run < longest && at(i + static_cast<std::size_t>(run.run)) == run.begin + run.run) ++run.run;
    const auto width = static_cast<std::size_t>(run.run);
    run.stride = std::max(run.run, at(i + width) - run.begin);
    const auto block_follows = [&](std::int64_t block) {
      for (std::size_t k = 0; k < width; ++k) {
        if (at(i + static_cast<std::size_t>(block) * width + k) !=
            run.begin + block * run.stride + static_cast<std::int64_t>(k)) {
          return false;
        }
      }
      return true;
    };
    while (run.count < most && block_follows(run.count)) ++run.count;
    set.push_back(run);
    i += static_cast<std::size_t>(run.size());
  }
  return set;
}

RC_GTEST_PROP(IndexSet, CanonicalDecidesSameIndices, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const IndexSet set = *small_index_set();
  const std::vector<std::int64_t> indices = expand(set);
  const IndexSet other = rewritten(indices, random);
  RC_ASSERT(expand(other) == indices);
  RC_ASSERT(canonical(other) == canonical(set));
  RC_ASSERT(same_indices(other, set));
  RC_ASSERT(same_members(other, set));

  const IndexSet unrelated = *small_index_set();
  RC_ASSERT(same_indices(set, unrelated) == (indices == expand(unrelated)));
  std::vector<std::int64_t> shuffled = indices;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  const IndexSet reordered = rewritten(shuffled, random);
  RC_ASSERT(same_indices(set, reordered) == (indices == shuffled));
  RC_ASSERT(same_members(set, reordered));
}

RC_GTEST_PROP(IndexSet, ClipAgreesWithExpansion, ()) {
  const IndexSet set = *small_index_set();
  const auto begin = pick("begin", rc::gen::inRange<std::int64_t>(-5, 120)),
             end = pick("end", rc::gen::inRange<std::int64_t>(-5, 140));
  std::vector<std::int64_t> expected;
  for (const std::int64_t i : expand(set)) {
    if (begin <= i && i < end) expected.push_back(i);
  }
  const IndexSet clipped = clip(set, begin, end);
  RC_ASSERT(expand(clipped) == expected);
  RC_ASSERT(canonical(clipped) == clipped);
}

RC_GTEST_PROP(IndexSet, ComposeAgreesWithExpansion, ()) {
  const IndexSet base = *small_index_set();
  const std::vector<std::int64_t> indices = expand(base);
  const IndexSet positions = positions_within(*small_index_set(), size(base));
  std::vector<std::int64_t> expected;
  for (const std::int64_t i : expand(positions)) expected.push_back(indices[static_cast<std::size_t>(i)]);
  const IndexSet composed = compose(base, positions);
  RC_ASSERT(expand(composed) == expected);
  RC_ASSERT(canonical(composed) == composed);
}

RC_GTEST_PROP(IndexSet, ComposeIsAssociative, ()) {
  const IndexSet a = *small_index_set();
  const IndexSet b = positions_within(*small_index_set(), size(a));
  const IndexSet c = positions_within(*small_index_set(), size(b));
  RC_ASSERT(compose(compose(a, b), c) == compose(a, compose(b, c)));
}

// What intersect and intersection_size say about a and b against their expansion: "" or what is wrong.
std::string intersection_fault(const IndexSet& a, const IndexSet& b) {
  struct Shared {
    std::int64_t global, in_a, in_b;
    auto operator<=>(const Shared&) const = default;
  };
  std::vector<Shared> expected, found;
  for (const std::int64_t global : expand(a)) {
    if (const auto in_b = to_local(b, global)) expected.push_back({global, *to_local(a, global), *in_b});
  }
  const std::vector<Overlap> overlaps = intersect(a, b);
  std::int64_t earlier = -1;
  for (const Overlap& o : overlaps) {
    const auto [least, most] = std::minmax({o.stride_global, o.stride_a, o.stride_b});
    if (o.run < 1 || o.count < 1 || least < o.run || (o.count == 1 && most > o.run))
      return "a malformed overlap";
    if (std::exchange(earlier, o.in_a) >= o.in_a) return "overlaps out of order";
    for (std::int64_t k = 0; k < o.count; ++k) {
      for (std::int64_t i = 0; i < o.run; ++i) {
        found.push_back(
            {o.global + k * o.stride_global + i, o.in_a + k * o.stride_a + i, o.in_b + k * o.stride_b + i});
      }
    }
  }
  std::sort(expected.begin(), expected.end());
  std::sort(found.begin(), found.end());
  if (found != expected)
    return str(found.size(), " shared indices found, ", expected.size(), " expected, or misplaced");
  if (intersection_size(a, b) != static_cast<std::int64_t>(expected.size())) {
    return str("intersection_size ", intersection_size(a, b), " instead of ", expected.size());
  }
  return "";
}

RC_GTEST_PROP(IndexSet, IntersectAgreesWithExpansion, ()) {
  const IndexSet a = *small_index_set(), b = *small_index_set();
  RC_ASSERT(intersection_fault(a, b) == "");
}

// Many blocks of strides with and without a common factor, where the meetings are found modulo the lcm.
RC_GTEST_PROP(IndexSet, IntersectOfPeriodicRunsAgreesWithExpansion, ()) {
  const Run a = *small_run(40, 6, 120), b = *small_run(40, 6, 120);
  RC_ASSERT(intersection_fault({a}, {b}) == "");
}

TEST(IndexSet, IntersectOfAllSmallRunsAgreesWithExpansion) {
  IndexSet runs;
  for (const std::int64_t begin : {0, 1, 5}) {
    for (const std::int64_t run : {1, 2, 3}) {
      for (std::int64_t stride = run; stride <= run + 4; ++stride) {
        for (const std::int64_t count : {1, 2, 5, 12}) runs.push_back({begin, run, stride, count});
      }
    }
  }
  for (const auto& a : runs) {
    for (const auto& b : runs) {
      ASSERT_EQ(intersection_fault({a}, {b}), "") << to_string({a}) << " and " << to_string({b});
    }
  }
}

IndexSet many_runs(std::mt19937_64& random, bool ascending) {
  const auto below = [&](std::uint64_t limit) { return static_cast<std::int64_t>(random() % limit); };
  std::vector<Run> runs;
  for (int i = 0; i < 60; ++i) runs.push_back({below(400), 1 + below(5), 5 + below(20), 1 + below(6)});
  IndexSet set = without_repeats(runs);
  if (ascending) {
    std::sort(set.begin(), set.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  }
  return set;
}

// Enough runs that they are looked up instead of tried pair by pair, in ascending and in random local order.
TEST(IndexSet, IntersectOfManyRunsAgreesWithExpansion) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const IndexSet a = many_runs(random, round % 2 == 0), b = many_runs(random, round % 3 == 0);
    ASSERT_GT(a.size() * b.size(), 64U);
    ASSERT_EQ(intersection_fault(a, b), "") << to_string(a) << " and " << to_string(b);
  }
}

}  // namespace
}  // namespace cp
