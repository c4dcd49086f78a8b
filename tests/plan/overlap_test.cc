#include "shared/plan/overlap.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/plan/plan_model.h"

namespace cp {
namespace {

int draw(int begin, int end) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end)); }

// Dimensions nest, as in every tensor layout.
View tensor_view() {
  View view{0, draw(0, 60), {}, {}, {}};
  std::int64_t reach = 1;
  for (int dims = draw(0, 4); dims > 0; --dims) {
    view.shape.insert(view.shape.begin(), draw(dims == 1 ? 0 : 1, 5));
    view.strides.insert(view.strides.begin(), reach + draw(0, 4));
    reach = view.strides.front() * std::max<std::int64_t>(view.shape.front(), 1);
  }
  return view;
}

View any_view() {
  View view = tensor_view();
  for (std::int64_t& stride : view.strides) stride = draw(0, 12);
  return view;
}

View moving(View view) {
  switch (draw(0, 4)) {
    case 0:
      break;
    case 1:
      view.advance = {draw(-9, 30), draw(1, 4), draw(0, 5)};
      break;
    default:
      view.advance = {draw(-9, 10), 0, draw(0, 4)};
      break;
  }
  view.offset += 100;
  return view;
}

bool truth(const View& a, std::int64_t i, const View& b, std::int64_t j) {
  const auto x = test::elements(a, offset_at(a, i)), y = test::elements(b, offset_at(b, j));
  return std::any_of(x.begin(), x.end(), [&](std::int64_t element) { return y.contains(element); });
}

bool truth_at_lag(const View& a, const View& b, std::int64_t lag, std::int64_t count) {
  for (std::int64_t i = lag; i < count; ++i) {
    if (truth(a, i, b, i - lag)) return true;
  }
  return false;
}

TEST(Overlap, DifferentBuffersAndEmptyViewsShareNothing) {
  const View a = flat_view(0, 0, 8);
  EXPECT_TRUE(overlaps_at_lag(a, a, 0, 1));
  EXPECT_FALSE(overlaps_at_lag(a, flat_view(1, 0, 8), 0, 1));
  EXPECT_FALSE(overlaps_at_lag(a, flat_view(0, 4, 0), 0, 1));
  EXPECT_FALSE(overlaps_at_lag(a, a, 1, 1));
}

TEST(Overlap, HeadsOfOneTensorAreToldApart) {
  // [seq 8, heads 4, dim 16]: head 1 and head 2, and all heads of rows 2..3.
  const View head1{0, 16, {8, 16}, {64, 1}, {}}, head2{0, 32, {8, 16}, {64, 1}, {}},
      rows{0, 128, {2, 64}, {64, 1}, {}};
  EXPECT_FALSE(overlaps_at_lag(head1, head2, 0, 1));
  EXPECT_TRUE(overlaps_at_lag(head1, rows, 0, 1));
}

TEST(Overlap, ALongRepeatCostsNoMoreThanAShortOne) {
  const std::int64_t count = std::int64_t{1} << 30;
  const View layer{0, 0, {4}, {1}, {4, 0, 0}}, next{0, 4, {4}, {1}, {4, 0, 0}}, first{0, 0, {4}, {1}, {}};
  EXPECT_FALSE(overlaps_at_lag(layer, next, 0, count));
  EXPECT_EQ(least_overlapping_lag(layer, next, 1, count), 1);
  EXPECT_EQ(least_overlapping_lag(next, layer, 1, count), std::nullopt);
  EXPECT_EQ(least_overlapping_lag(first, layer, 1, count), 1);
  EXPECT_EQ(least_overlapping_lag(layer, first, 1, count), std::nullopt);
  EXPECT_TRUE(ever_overlaps(layer, count, View{0, 4 * (count - 1), {1}, {1}, {}}, 1));
  EXPECT_FALSE(ever_overlaps(layer, count, View{0, 4 * count, {1}, {1}, {}}, 1));
}

TEST(Overlap, FartherThanTheGreatestLagIsReportedThere) {
  const View behind = flat_view(0, 0, 1, {1, 0, 0}), ahead = flat_view(0, 500, 1, {1, 0, 0});
  EXPECT_EQ(least_overlapping_lag(behind, ahead, 1, 1000), kMaxLag);  // truly 500
  EXPECT_EQ(least_overlapping_lag(behind, ahead, 1, 100), std::nullopt);
}

RC_GTEST_PROP(Overlap, IsExactForTensorLayouts, ()) {
  const View a = tensor_view(), b = tensor_view();
  RC_CLASSIFY(truth(a, 0, b, 0), "overlap");
  RC_ASSERT(overlaps_at_lag(a, b, 0, 1) == truth(a, 0, b, 0));
}

RC_GTEST_PROP(Overlap, NeverMissesAnOverlap, ()) {
  const View a = any_view(), b = any_view();
  if (truth(a, 0, b, 0)) RC_ASSERT(overlaps_at_lag(a, b, 0, 1));
}

RC_GTEST_PROP(Overlap, IsExactAcrossIterations, ()) {
  const View a = moving(tensor_view()), b = moving(tensor_view());
  const std::int64_t count = draw(1, 9), lag = draw(0, 4);
  RC_ASSERT(overlaps_at_lag(a, b, lag, count) == truth_at_lag(a, b, lag, count));
}

RC_GTEST_PROP(Overlap, FindsTheLeastLag, ()) {
  const View a = moving(tensor_view()), b = moving(tensor_view());
  const std::int64_t count = draw(1, 9), from = draw(0, 3);
  std::optional<std::int64_t> expected;
  for (std::int64_t lag = from; lag < count && !expected; ++lag) {
    if (truth_at_lag(a, b, lag, count)) expected = lag;
  }
  RC_ASSERT(least_overlapping_lag(a, b, from, count) == expected);
}

RC_GTEST_PROP(Overlap, ComparesAllIterations, ()) {
  const View a = moving(tensor_view()), b = moving(tensor_view());
  const std::int64_t count_a = draw(1, 6), count_b = draw(1, 6);
  bool expected = false;
  for (std::int64_t i = 0; i < count_a; ++i) {
    for (std::int64_t j = 0; j < count_b; ++j) expected = expected || truth(a, i, b, j);
  }
  RC_ASSERT(ever_overlaps(a, count_a, b, count_b) == expected);
}

RC_GTEST_PROP(Overlap, TheExtentHoldsAllIterationsTightly, ()) {
  const View view = moving(tensor_view());
  const std::int64_t count = draw(1, 9);
  std::set<std::int64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.merge(test::elements(view, offset_at(view, i)));
  const Extent found = extent(view, count);
  if (view.numel() > 0) {
    RC_ASSERT(found.begin <= *all.begin() && *all.rbegin() < found.end);
    if (view.advance.period == 0 || count >= view.advance.period) {
      RC_ASSERT(found.begin == *all.begin() && *all.rbegin() + 1 == found.end);
    }
  }
}

}  // namespace
}  // namespace cp
