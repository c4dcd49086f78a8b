// Curve: a quantity over a size (of a message, a kernel or a product). It was measured at some sizes, and is
// interpolated between them.
#pragma once

#include <vector>

namespace cp::sim {

struct CurvePoint {
  double x = 0, y = 0;  // both in [Curve::kLeast, Curve::kMost]
  bool operator==(const CurvePoint&) const = default;
};

// Between two neighbouring points the curve is a straight line in log-log scale. Outside of all points it has
// the value of the first or the last one.
class Curve {
 public:
  Curve() = default;
  // What is measured lies far inside of these: a byte a minute is 1.7e-11 GB/s, and all that was ever
  // computed under 1e30 flops. Ratios of any two such numbers, and times made of them, are finite and above
  // 0.
  static constexpr double kLeast = 1e-12, kMost = 1e30;

  // Sorts by x. Throws InvalidInput unless all numbers are in [kLeast, kMost], and no x comes twice.
  explicit Curve(std::vector<CurvePoint> points);

  bool empty() const { return points_.empty(); }
  const std::vector<CurvePoint>& points() const { return points_; }
  double at(double x) const;  // not of an empty curve
  bool operator==(const Curve&) const = default;

 private:
  std::vector<CurvePoint> points_;
};

}  // namespace cp::sim
