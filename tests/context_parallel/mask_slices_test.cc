// Masks between index sets, against the definition pair by pair.
#include "shared/context_parallel/mask_slices.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/context_parallel/problem_generator.h"

namespace cp::testing {
namespace {

using ::testing::ElementsAre;
using Kind = MaskSlice::Kind;

AttentionProblem problem_of(std::int64_t q_len, std::int64_t kv_len) {
  AttentionProblem problem;
  problem.q_len = q_len, problem.kv_len = kv_len;
  return problem;
}

// The rule of problem.h, straight from its words.
bool allowed(const AttentionProblem& problem, std::int64_t query, std::int64_t key) {
  const std::int64_t position = query + problem.offset();
  if (problem.causal && key > position) return false;
  if (problem.window && key <= position - *problem.window) return false;
  if (problem.window && key >= position + *problem.window) return false;
  if (problem.chunk) {
    const auto piece = [&](std::int64_t at) {
      return std::floor(static_cast<double>(at) / static_cast<double>(*problem.chunk));
    };
    if (piece(position) != piece(key)) return false;
  }
  if (problem.cu_seqlens.empty()) return true;
  for (std::size_t d = 1; d < problem.cu_seqlens.size(); ++d) {
    const auto inside = [&](std::int64_t at) {
      return problem.cu_seqlens[d - 1] <= at && at < problem.cu_seqlens[d];
    };
    if (inside(position) && inside(key)) return true;
  }
  return false;
}

TEST(MaskSlices, FullIsOneRectangle) {
  EXPECT_THAT(mask_slices(problem_of(8, 8), index_range(0, 4), index_range(4, 8)),
              ElementsAre(MaskSlice{0, 4, 0, 4, Kind::full, 0, 0}));
}

TEST(MaskSlices, CausalOnTheDiagonalBelowAndAbove) {
  AttentionProblem problem = problem_of(8, 8);
  problem.causal = true;
  EXPECT_THAT(mask_slices(problem, index_range(4, 8), index_range(4, 8)),
              ElementsAre(MaskSlice{0, 4, 0, 4, Kind::causal, 0, 0}));
  EXPECT_THAT(mask_slices(problem, index_range(4, 8), index_range(0, 4)),
              ElementsAre(MaskSlice{0, 4, 0, 4, Kind::full, 0, 0}));
  EXPECT_TRUE(mask_slices(problem, index_range(0, 4), index_range(4, 8)).empty());
}

// Bottom-right: with more keys than queries, the last query sees all keys.
TEST(MaskSlices, CausalAlignsTheEndsUnlessAnOffsetIsGiven) {
  AttentionProblem problem = problem_of(2, 5);
  problem.causal = true;
  EXPECT_EQ(allowed_keys(problem, 1), (KeyInterval{0, 5}));
  EXPECT_EQ(allowed_keys(problem, 0), (KeyInterval{0, 4}));
  problem.query_offset = 0;
  EXPECT_EQ(allowed_keys(problem, 1), (KeyInterval{0, 2}));
}

// Rank r of a ring striped by single rows sees every block by one slice, whatever the length.
TEST(MaskSlices, StripesMeetInOneSlice) {
  AttentionProblem problem = problem_of(1 << 20, 1 << 20);
  problem.causal = true;
  constexpr std::int64_t kRows = 1 << 17;
  const IndexSet q = {{3, 1, 8, kRows}}, earlier = {{1, 1, 8, kRows}}, later = {{5, 1, 8, kRows}};
  EXPECT_THAT(mask_slices(problem, q, earlier),
              ElementsAre(MaskSlice{0, kRows, 0, kRows, Kind::causal, 0, 0}));
  EXPECT_THAT(mask_slices(problem, q, later),
              ElementsAre(MaskSlice{1, kRows - 1, 0, kRows - 1, Kind::causal, 0, 0}));
}

// What lies inside the mask is joined, though the keys are not neighbours but in memory.
TEST(MaskSlices, NeighboursInMemoryAreJoined) {
  AttentionProblem problem = problem_of(16, 16);
  problem.causal = true;
  const IndexSet q = index_range(12, 16), keys = {{0, 2, 2, 1}, {4, 2, 2, 1}, {8, 2, 2, 1}};
  EXPECT_THAT(mask_slices(problem, q, keys), ElementsAre(MaskSlice{0, 4, 0, 6, Kind::full, 0, 0}));
}

TEST(MaskSlices, WindowIsTrimmedToItsBand) {
  AttentionProblem problem = problem_of(100, 100);
  problem.causal = true;
  problem.window = 10;
  EXPECT_THAT(mask_slices(problem, index_range(50, 60), index_range(0, 100)),
              ElementsAre(MaskSlice{0, 10, 41, 19, Kind::window, 9, 10}));
}

// Rows further apart than the window is wide.
TEST(MaskSlices, AStrideMayBeWiderThanTheWindow) {
  AttentionProblem problem = problem_of(37, 37);
  problem.causal = true;
  problem.window = 2;
  const IndexSet q = {{3, 1, 6, 5}}, k = {{5, 1, 6, 5}};
  EXPECT_TRUE(mask_slices(problem, q, k).empty());
  EXPECT_FALSE(any_allowed(problem, q, k));
}

RC_GTEST_PROP(MaskSlices, AllowEachAllowedPairOnceAndNoOther, ()) {
  const AttentionProblem problem = *any_problem();
  const IndexSet q_rows = *any_rows(problem.q_len), k_rows = *any_rows(problem.kv_len);
  std::map<std::pair<std::int64_t, std::int64_t>, int> times;
  for (const MaskSlice& slice : mask_slices(problem, q_rows, k_rows)) {
    bool any = false;
    for (std::int64_t q = slice.q_begin; q < slice.q_begin + slice.q_len; ++q) {
      for (std::int64_t k = slice.k_begin; k < slice.k_begin + slice.k_len; ++k) {
        if (allows(slice, q, k)) ++times[{q, k}], any = true;
      }
    }
    RC_ASSERT(any);
  }
  std::int64_t cells = 0;
  for (std::int64_t q = 0; q < size(q_rows); ++q) {
    for (std::int64_t k = 0; k < size(k_rows); ++k) {
      const bool wanted = allowed(problem, to_global(q_rows, q), to_global(k_rows, k));
      const auto found = times.find({q, k});
      RC_ASSERT((found == times.end() ? 0 : found->second) == (wanted ? 1 : 0));
      cells += wanted ? 1 : 0;
    }
  }
  RC_ASSERT(any_allowed(problem, q_rows, k_rows) == (cells > 0));
}

RC_GTEST_PROP(MaskSlices, NeededKeysAreThoseThatSomeQuerySees, ()) {
  const AttentionProblem problem = *any_problem();
  const IndexSet q_rows = *any_rows(problem.q_len);
  const IndexSet needed = needed_keys(problem, q_rows);
  for (std::int64_t key = 0; key < problem.kv_len; ++key) {
    bool seen = false;
    for (std::int64_t q = 0; q < size(q_rows); ++q)
      seen = seen || allowed(problem, to_global(q_rows, q), key);
    RC_ASSERT(to_local(needed, key).has_value() == seen);
  }
  RC_ASSERT(needed == canonical(needed));
}

RC_GTEST_PROP(MaskSlices, AllowedKeysAreOneRangeThatNeverDescends, ()) {
  const AttentionProblem problem = *any_problem();
  KeyInterval before;
  std::int64_t cells = 0;
  for (std::int64_t query = 0; query < problem.q_len; ++query) {
    const KeyInterval keys = allowed_keys(problem, query);
    for (std::int64_t key = 0; key < problem.kv_len; ++key) {
      RC_ASSERT((keys.begin <= key && key < keys.end) == allowed(problem, query, key));
    }
    cells += keys.end - keys.begin;
    if (keys.begin == keys.end) continue;
    RC_ASSERT(keys.begin >= before.begin);
    RC_ASSERT(keys.end >= before.end);
    before = keys;
  }
  RC_ASSERT(allowed_cells(problem, 0, problem.q_len) == cells);
}

// What is asked of all batch entries is what is asked of each.
RC_GTEST_PROP(MaskGroups, SumUpToTheProblem, ()) {
  const AttentionProblem problem = *any_problem_of_entries();
  const std::vector<MaskGroup> groups = mask_groups(problem);
  std::int64_t next = 0, cells = 0;
  const IndexSet q_rows = *any_rows(problem.q_len), k_rows = *any_rows(problem.kv_len);
  bool any = false;
  std::set<std::int64_t> needed;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const AttentionProblem& group = groups[g].problem;
    RC_ASSERT(groups[g].first == next);
    if (g > 0) RC_ASSERT(groups[g - 1].problem.cu_seqlens != group.cu_seqlens);
    for (std::int64_t i = 0; i < group.batch; ++i)
      RC_ASSERT(group.cu_seqlens == problem.cu_seqlens_of_entry[static_cast<std::size_t>(next + i)]);
    next += group.batch;
    cells += group.batch * allowed_cells(group, 0, group.q_len);
    any |= any_allowed(group, q_rows, k_rows);
    for (const Run& run : needed_keys(group, q_rows)) {
      for (std::int64_t i = 0; i < run.count; ++i)
        for (std::int64_t j = 0; j < run.run; ++j) needed.insert(run.begin + i * run.stride + j);
    }
  }
  RC_ASSERT(next == problem.batch);
  RC_ASSERT(allowed_cells(problem, 0, problem.q_len) == cells);
  RC_ASSERT(any_allowed(problem, q_rows, k_rows) == any);
  std::vector<std::int64_t> found;
  for (const Run& run : needed_keys(problem, q_rows)) {
    for (std::int64_t i = 0; i < run.count; ++i)
      for (std::int64_t j = 0; j < run.run; ++j) found.push_back(run.begin + i * run.stride + j);
  }
  RC_ASSERT(found == std::vector<std::int64_t>(needed.begin(), needed.end()));
}

}  // namespace
}  // namespace cp::testing
