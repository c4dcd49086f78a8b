// One pair of layouts, as far as it goes without data: planned, audited, lowered and proven.
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
  std::size_t source = 0, target = 0;  // numbers in the search
  bool infeasible = false;             // neither planner nor search knows a chain in the bound
  std::vector<Plan> plans;             // of all ranks; none where the pair cannot be run
  bool regroups = false;  // contributions are reduced on the way, and others made that reduce to the same
  std::vector<Finding> findings;
};

// `cheapest`: the search's answer for the pair. Adds the time it takes to `times`.
CheckedPair check_pair(const ExhaustiveSearch& search, std::size_t source, std::size_t target,
                       const std::optional<ExhaustiveSearch::Chain>& cheapest,
                       const VerifyRedistributeOptions& options, VerifyRedistributeResult::Times& times);

}  // namespace cp::sim
