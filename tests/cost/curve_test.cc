#include "sim/cost/cluster/curve.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

std::string curve_error(std::vector<CurvePoint> points) {
  try {
    Curve{std::move(points)};
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Curve, IsExactAtItsPoints) {
  const Curve curve({{1024, 3.7}, {4096, 11}, {65536, 5}});
  for (const CurvePoint& point : curve.points()) EXPECT_EQ(curve.at(point.x), point.y);
}

// Halfway between 100 and 10000 in log scale lies 1000; halfway between 2 and 8, 4. A quarter of the way: 2 x
// 4^(1/4).
TEST(Curve, IsAStraightLineInLogLogScale) {
  const Curve curve({{100, 2}, {10'000, 8}});
  EXPECT_NEAR(curve.at(1000), 4, 1e-14);
  EXPECT_NEAR(curve.at(100 * std::sqrt(10)), 2 * std::sqrt(2), 1e-14);
}

TEST(Curve, IsFlatOutsideOfItsPoints) {
  const Curve curve({{100, 2}, {10'000, 8}});
  EXPECT_EQ(curve.at(1), 2);
  EXPECT_EQ(curve.at(1e12), 8);
  const Curve point({{100, 2}});
  for (const double x : {1.0, 100.0, 1e9}) EXPECT_EQ(point.at(x), 2);
}

TEST(Curve, SortsItsPoints) { EXPECT_EQ(Curve({{4, 1}, {1, 2}, {2, 3}}), Curve({{1, 2}, {2, 3}, {4, 1}})); }

TEST(Curve, RefusesWhatHasNoLogarithm) {
  EXPECT_EQ(curve_error({{1, 0}}), "a curve's point (1, 0) must consist of numbers in [1e-12, 1e+30]");
  EXPECT_EQ(curve_error({{1, 1e-13}}),
            "a curve's point (1, 1e-13) must consist of numbers in [1e-12, 1e+30]");
  EXPECT_EQ(curve_error({{1e31, 1}}), "a curve's point (1e+31, 1) must consist of numbers in [1e-12, 1e+30]");
  EXPECT_EQ(curve_error({{-2, 1}}), "a curve's point (-2, 1) must consist of numbers in [1e-12, 1e+30]");
  EXPECT_THAT(curve_error({{1, std::numeric_limits<double>::infinity()}}), ::testing::HasSubstr("(1, inf)"));
  EXPECT_THAT(curve_error({{std::nan(""), 1}}), ::testing::HasSubstr("nan"));
  EXPECT_EQ(curve_error({{2, 1}, {3, 1}, {2, 5}}), "a curve has two points at 2; keep one");
}

// The value never leaves what its neighbours span, up to the rounding of exp and log of numbers up to 1e6:
// the exponent is at most log(1e6) < 14, and a few of its ulps are a relative 14 x 4 x 2^-53 < 1e-14.
RC_GTEST_PROP(Curve, MonotoneDataStaysMonotone, ()) {
  std::vector<CurvePoint> points;
  double x = 1, y = 1;
  for (int i = pick("points", rc::gen::inRange(1, 10)); i > 0; --i) {
    x += pick("further x", rc::gen::inRange(1, 100'000));
    y += pick("further y", rc::gen::inRange(0, 100'000));
    points.push_back({x, y});
  }
  const Curve curve(points);
  const double a = pick("a", rc::gen::inRange(1, 1'000'000)),
               b = a + pick("b is behind by", rc::gen::inRange(0, 1'000'000));
  RC_ASSERT(curve.at(a) <= curve.at(b) * (1 + 1e-14));
  RC_ASSERT(curve.at(a) >= points.front().y);
  RC_ASSERT(curve.at(b) <= points.back().y * (1 + 1e-14));
}

}  // namespace
}  // namespace cp::sim
