// Where the elements of views lie, as the kernels find it; also of views larger than any memory here.
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "runtime/cuda/walk.h"
#include "tests/gpu/kernel_views.h"

namespace cp::runtime {
namespace {

using testing::any_of;
using testing::pick;

RC_GTEST_PROP(Divider, DividesAllBelowTwoToThe31, ()) {
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  const std::int64_t size = any_of<std::int64_t>(
      {1, 2, 3, 7, 641, (1 << 16) + 1, (1 << 30) + 1, most - 1, most, pick<std::int64_t>(1, most)});
  const Divider by = divider(size);
  for (const std::int64_t n : {std::int64_t{0}, size - 1, size, size + 1, most / size * size - 1,
                               most / size * size, most, pick<std::int64_t>(0, most)}) {
    if (n < 0 || n > most) continue;
    RC_ASSERT(by.quotient(static_cast<std::uint32_t>(n)) == n / size);
  }
}

// Elements before `part` in the walk of a contiguous pair of views.
TEST(Walks, SplitViewsOfMoreElementsThan32BitsCount) {
  const std::int64_t rows = 5, row = (std::int64_t{3} << 30) + 8;
  const View in{0, 0, {rows, row}, {2 * row, 1}, {}}, out{1, 0, {rows, row}, {row + 16, 1}, {}};
  for (const std::int64_t pack : {1, 8}) {
    const auto parts = walks(in, out, pack);
    ASSERT_TRUE(parts.has_value());
    std::int64_t elements = 0;
    for (const WalkPart& part : *parts) {
      const std::int64_t unit = part.packed ? pack : 1, count = part.walk.count;
      // First and last element of the part: at the same place of the same row on both sides.
      for (const std::int64_t number : {std::int64_t{0}, count - 1}) {
        const WalkOffsets at = part.walk.at(static_cast<std::uint32_t>(number));
        const std::int64_t from = part.in_offset + at.in * unit, to = part.out_offset + at.out * unit;
        ASSERT_EQ(from / (2 * row), to / (row + 16));
        ASSERT_EQ(from % (2 * row), to % (row + 16));
        ASSERT_LT(from % (2 * row), row);
      }
      elements += count * unit;
    }
    EXPECT_EQ(elements, rows * row);
  }
}

TEST(Walks, LeaveTheTailOfARunToSingleElements) {
  const auto parts = walks(flat_view(0, 0, 21), flat_view(1, 0, 21), 8);
  ASSERT_TRUE(parts.has_value());
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_FALSE(parts->at(0).packed);
  EXPECT_EQ(parts->at(0).in_offset, 16);
  EXPECT_EQ(parts->at(0).walk.count, 5u);
  EXPECT_TRUE(parts->at(1).packed);
  EXPECT_EQ(parts->at(1).walk.count, 2u);
}

TEST(Walks, FindNoPacksWhereRowsAreNone) {
  const View in{0, 0, {4, 12}, {12, 1}, {}}, out{1, 0, {4, 12}, {14, 1}, {}};
  EXPECT_FALSE(walks(in, out, 4).has_value());
  EXPECT_TRUE(walks(in, out, 2).has_value());
}

// Both views in the same other order of dimensions are one run.
TEST(Walks, FollowTheOrderInMemory) {
  const View in{0, 0, {3, 5}, {1, 3}, {}}, out{1, 0, {3, 5}, {1, 3}, {}};
  EXPECT_EQ(ordered_loops(in, out), (std::vector<Loop>{{15, 1, 1}}));
}

}  // namespace
}  // namespace cp::runtime
