// What steps have written of one buffer, in one iteration of a Repeat, and whether a view reads nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/plan/overlap.h"
#include "shared/plan/plan.h"

namespace cp {

// All views given to it must be of the same buffer, move alike with the iterations (equal advances), and
// outlive it. Those written must have no element twice, as validate_step() sees to.
//
// "Yes" is always right. "No" may be wrong where strided writes overlap one another, and where a view reads
// of strided writes neither one of them nor all that they fill.
class Written {
 public:
  void add(const View& view);
  bool holds(const View& view) const;
  bool empty() const { return filled_.empty() && parts_.empty(); }

 private:
  void add_filled(Extent extent);

  // The first of what is filled, which mostly is all; and the rest. Neither meets nor touches another.
  Extent filled_;
  std::vector<Extent> more_filled_;
  // Writes with holes that share no element, and the elements between the first and the last of them. As soon
  // as there are as many elements as fit, there is no hole left.
  std::vector<const View*> parts_;
  Extent around_;
  std::int64_t numel_ = 0;
};

}  // namespace cp
