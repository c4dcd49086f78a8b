// Audits one redistribution of the planner: holds it against the exhaustive search.
#pragma once

#include <cstddef>
#include <string>

#include "shared/redistribute/redistribution.h"
#include "sim/proof/exhaustive/exhaustive.h"

namespace cp::sim {

struct Audit {
  // In words, what the redistribution says of itself and the search counts differently: a step that is no
  // move by the rules, or one with another time, other bytes or other temporaries; or totals that are not
  // those of the steps. Empty if all is as declared.
  std::string misdeclared;
  // Its time, as the search counts it, minus the time of the cheapest chain. Positive if the planner missed a
  // cheaper chain, negative if it found one that the search does not know.
  std::int64_t excess_ps = 0;
};

// `cheapest` is the answer of the search for the same source and target.
Audit audit(const Redistribution& redistribution, const ExhaustiveSearch& search,
            const ExhaustiveSearch::Chain& cheapest);

}  // namespace cp::sim
