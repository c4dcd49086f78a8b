#include "shared/plan/byte_map.h"

#include <set>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"

namespace cp {
namespace {

using Ranges = std::vector<ByteRange>;

Ranges ranges_of(const View& view, std::int64_t begin, std::int64_t element_bytes) {
  Ranges ranges = {{77, 78}};  // is overwritten
  byte_ranges(view, begin, element_bytes, ranges);
  return ranges;
}

TEST(ByteRanges, ContiguousViewsAreOneRange) {
  EXPECT_EQ(ranges_of(flat_view(0, 5, 3), 20, 4), (Ranges{{20, 32}}));
  EXPECT_EQ(ranges_of(dense_view(0, 5, {2, 3, 4}), 20, 2), (Ranges{{20, 68}}));
  EXPECT_EQ(ranges_of(View{0, 0, {}, {}, {}}, 8, 4), (Ranges{{8, 12}}));
  EXPECT_EQ(ranges_of(flat_view(0, 5, 0), 20, 4), Ranges{});
}

TEST(ByteRanges, StridedViewsAreAsFewRangesAsPossible) {
  EXPECT_EQ(ranges_of(View{0, 0, {3, 2}, {4, 1}, {}}, 0, 1), (Ranges{{0, 2}, {4, 6}, {8, 10}}));
  // A transposed tensor covers the same bytes as the tensor.
  EXPECT_EQ(ranges_of(View{0, 0, {3, 4}, {1, 3}, {}}, 0, 4), (Ranges{{0, 48}}));
  // Two outer dimensions of which one continues the other.
  EXPECT_EQ(ranges_of(View{0, 0, {2, 2, 3}, {12, 6, 2}, {}}, 0, 1).size(), 12u);
  // Repeated and overlapping elements count once.
  EXPECT_EQ(ranges_of(View{0, 0, {5, 2}, {0, 1}, {}}, 0, 4), (Ranges{{0, 8}}));
  EXPECT_EQ(ranges_of(View{0, 0, {3, 4}, {2, 1}, {}}, 0, 1), (Ranges{{0, 8}}));
  EXPECT_EQ(ranges_of(View{0, 0, {2, 3}, {3, 2}, {}}, 0, 1), (Ranges{{0, 1}, {2, 6}, {7, 8}}));
}

RC_GTEST_PROP(ByteRanges, CoverTheBytesOfEveryElement, ()) {
  const auto dims = pick("dims", rc::gen::inRange<std::size_t>(0, 5));
  View view{0, 0, {}, {}, {}};
  for (std::size_t i = 0; i < dims; ++i) {
    view.shape.push_back(pick("size of the next dimension", rc::gen::inRange<std::int64_t>(0, 5)));
    view.strides.push_back(pick("its stride", rc::gen::inRange<std::int64_t>(0, 12)));
  }
  const auto element_bytes = pick("element_bytes", rc::gen::element<std::int64_t>(1, 2, 4));
  std::set<std::int64_t> starts = {3};
  for (std::size_t i = 0; i < dims; ++i) {
    std::set<std::int64_t> finer;
    for (const std::int64_t start : starts) {
      for (std::int64_t k = 0; k < view.shape[i]; ++k)
        finer.insert(start + k * view.strides[i] * element_bytes);
    }
    starts = finer;
  }
  std::set<std::int64_t> expected;
  for (const std::int64_t start : starts) {
    for (std::int64_t k = 0; k < element_bytes; ++k) expected.insert(start + k);
  }
  std::set<std::int64_t> covered;
  std::int64_t last_end = -1;
  for (const ByteRange& range : ranges_of(view, 3, element_bytes)) {
    RC_ASSERT(range.begin > last_end);  // ascending, and never touching the one before
    RC_ASSERT(range.end > range.begin);
    for (std::int64_t byte = range.begin; byte < range.end; ++byte) covered.insert(byte);
    last_end = range.end;
  }
  RC_ASSERT(covered == expected);
}

// Against a state for each byte: what is seen, and what is kept.
RC_GTEST_PROP(ByteMap, DoesAsAStateForEachByte, ()) {
  const auto size = pick("size", rc::gen::inRange<std::int64_t>(1, 40));
  ByteMap map;
  map.reset(size, {.owner = 5});
  std::vector<ByteMap::State> model(static_cast<std::size_t>(size), ByteMap::State{.owner = 5});
  const auto visits = pick("visits", rc::gen::inRange<int>(0, 30));
  for (int n = 0; n < visits; ++n) {
    Ranges ranges;
    for (std::int64_t byte = 0; byte < size; ++byte) {
      if (!pick("whether continue", rc::gen::weightedElement<bool>({{2, false}, {1, true}}))) continue;
      if (!ranges.empty() && ranges.back().end == byte) {
        ++ranges.back().end;
      } else {
        ranges.push_back({byte, byte + 1});
      }
    }
    const auto writer = pick("writer", rc::gen::inRange<std::int32_t>(0, 3));
    const bool stops = pick("stops", rc::gen::inRange(0, 5)) == 0;
    const std::vector<ByteMap::State> before = model;
    std::vector<std::int64_t> seen;
    try {
      map.visit(ranges, [&](const ByteRange& range, ByteMap::State& state) {
        RC_ASSERT(range.begin < range.end);
        for (std::int64_t byte = range.begin; byte < range.end; ++byte) {
          seen.push_back(byte);
          RC_ASSERT(state == model[static_cast<std::size_t>(byte)]);
        }
        if (stops && seen.size() > 3) throw 1;
        state.writer = writer;
        for (std::int64_t byte = range.begin; byte < range.end; ++byte)
          model[static_cast<std::size_t>(byte)] = state;
      });
    } catch (int) {
      model = before;
      continue;
    }
    std::vector<std::int64_t> expected;
    for (const ByteRange& range : ranges) {
      for (std::int64_t byte = range.begin; byte < range.end; ++byte) expected.push_back(byte);
    }
    RC_ASSERT(seen == expected);
  }
}

}  // namespace
}  // namespace cp
