// Checks one pair of layouts as far as this goes without data: it is planned, audited, lowered and proven.
#pragma once

#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/proof/exhaustive/exhaustive.h"
#include "sim/proof/exhaustive/verify_redistribute.h"

namespace cp::sim {

struct Finding {
  Fault fault = Fault::wrong;
  std::string what;
};

struct CheckedPair {
  std::size_t source = 0, target = 0;  // numbers in ExhaustiveSearch::layouts()
  bool infeasible = false;             // neither the planner nor the search knows a chain in the bound
  std::vector<Plan> plans;             // of all ranks; empty if the pair cannot be run
  // Whether contributions are reduced on the way, and others made that reduce to the same.
  bool regroups = false;
  std::vector<Finding> findings;
};

// Checks the pair. `cheapest` is the search's answer for it. Adds the time that this takes to `times`. What
// is wrong is in the findings, and not thrown.
CheckedPair check_pair(const ExhaustiveSearch& search, std::size_t source, std::size_t target,
                       const std::optional<ExhaustiveSearch::Chain>& cheapest,
                       const VerifyRedistributeOptions& options, VerifyRedistributeResult::Times& times);

}  // namespace cp::sim
