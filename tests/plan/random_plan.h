// Random plans that the builder accepts: several streams, Repeats, slots, strided views, every kind of step
// that moves little.
#pragma once

#include "shared/plan/plan.h"

namespace cp::test {

struct RandomPlanOptions {
  int max_streams = 3;
  bool repeats = true;
};

// Draws from rapidcheck: call inside of a property.
Plan random_plan(const RandomPlanOptions& options = {});

}  // namespace cp::test
