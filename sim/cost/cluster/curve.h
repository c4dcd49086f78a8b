// A quantity over the size of a message, a kernel or a product: what was measured at some sizes, and what
// lies between.
#pragma once

#include <vector>

namespace cp::sim {

struct CurvePoint {
  double x = 0, y = 0;  // both in [Curve::kLeast, Curve::kMost]
  bool operator==(const CurvePoint&) const = default;
};

// A straight line between neighbours in log-log scale; the first and the last value outside of the points.
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
