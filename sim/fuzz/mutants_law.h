// What check() promises of plans that it passes, of plans that were damaged in one place: they are refused,
// or they run to their end in every order with one result, and with the right one where the damage cannot be
// another legal program.
//
// It is what right plans cannot show: that a rule of the checker is gone.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/fabric/baton_order.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

// `run`: what the plans compute in an order, as a digest; throws what the fabric throws. `right`: what the
// right plans compute.
void check_mutants(const std::vector<Plan>& plans, std::uint64_t seed,
                   const std::function<std::string(const std::vector<Plan>&, const BatonOrder&)>& run,
                   const std::string& right, const Trial& trial);

}  // namespace cp::sim
