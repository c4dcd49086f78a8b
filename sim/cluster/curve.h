// A quantity over the size of a message, a kernel or a product: what was measured at some sizes, and what lies between.
#pragma once

#include <vector>

namespace cp::sim {

struct CurvePoint {
  double x = 0, y = 0;  // both > 0
  bool operator==(const CurvePoint&) const = default;
};

// A straight line between neighbours in log-log scale; the first and the last value outside of the points.
class Curve {
 public:
  Curve() = default;
  // Sorts by x. Throws InvalidInput unless all numbers are finite and above 0, and no x comes twice.
  explicit Curve(std::vector<CurvePoint> points);

  bool empty() const { return points_.empty(); }
  const std::vector<CurvePoint>& points() const { return points_; }
  double at(double x) const;  // not of an empty curve
  bool operator==(const Curve&) const = default;

 private:
  std::vector<CurvePoint> points_;
};

}  // namespace cp::sim
