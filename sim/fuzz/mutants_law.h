// A law of check(): of plans that were damaged in one place, it refuses those that do harm. What it passes
// must run to its end in every order of the ranks, with the same result each time, and with the right result
// unless the damage may have made another legal program.
//
// Right plans cannot show this. Only damaged ones show that a rule of the checker is gone.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/fabric/baton_order.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// Damages the plans in a few ways, drawn from the seed. `run` runs plans in one order and returns a digest of
// what they compute; it throws what the fabric throws. `right` is what it returns for the right plans. Throws
// PropertyFailure ("mutants").
void check_mutants(const std::vector<Plan>& plans, std::uint64_t seed,
                   const std::function<std::string(const std::vector<Plan>&, const BatonOrder&)>& run,
                   const std::string& right, const Trial& trial);

}  // namespace cp::sim
