// What tests use of sim/proof/exhaustive/shard_data.h, and the collectives of plans.
#pragma once

#include <vector>

#include "shared/plan/plan.h"
#include "sim/proof/exhaustive/shard_data.h"

namespace cp::testing {

using sim::contribution_of;
using sim::element_numbers;
using sim::ElementValue;
using sim::inner_product;
using sim::make_shards;
using sim::num_contributions;
using sim::run_plans;
using sim::Shards;
using sim::small_integer;

// The collectives of one rank's plan, in order; those of an exchange in rounds one by one.
std::vector<const Collective*> collectives_of(const Plan& plan);

}  // namespace cp::testing
