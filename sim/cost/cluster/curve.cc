#include "sim/cost/cluster/curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::sim {

Curve::Curve(std::vector<CurvePoint> points) : points_(std::move(points)) {
  std::sort(points_.begin(), points_.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  const auto possible = [](double value) { return value >= kLeast && value <= kMost; };
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (!possible(points_[i].x) || !possible(points_[i].y)) {
      throw InvalidInput(str("a curve's point (", points_[i].x, ", ", points_[i].y,
                             ") must consist of numbers in [", kLeast, ", ", kMost, "]"));
    }
    if (i > 0 && points_[i].x == points_[i - 1].x) {
      throw InvalidInput(str("a curve has two points at ", points_[i].x, "; keep one"));
    }
  }
}

double Curve::at(double x) const {
  CP_INVARIANT(!empty(), "an empty curve at ", x);
  if (x <= points_.front().x) return points_.front().y;
  if (x >= points_.back().x) return points_.back().y;
  const auto right = std::upper_bound(points_.begin(), points_.end(), x,
                                      [](double v, const CurvePoint& p) { return v < p.x; });
  const auto left = right - 1;
  const double share = std::log(x / left->x) / std::log(right->x / left->x);
  return left->y * std::pow(right->y / left->y, share);
}

}  // namespace cp::sim
