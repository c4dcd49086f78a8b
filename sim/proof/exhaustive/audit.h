// Audit: one redistribution of the planner, held against the exhaustive search.
#pragma once

#include <cstddef>
#include <string>

#include "shared/redistribute/redistribution.h"
#include "sim/proof/exhaustive/exhaustive.h"

namespace cp::sim {

struct Audit {
  // What the redistribution says of itself that the search counts differently: a step that is no move by the
  // rules, or whose time, bytes or temporaries are others; totals that are not those of the steps. Empty when
  // all is as declared.
  std::string misdeclared;
  // Its time, as the search counts it, less that of the cheapest chain: positive where the planner missed
  // one, negative where it found one that the search does not know.
  std::int64_t excess_ps = 0;
};

// `cheapest` is the answer of the search for the same source and target.
Audit audit(const Redistribution& redistribution, const ExhaustiveSearch& search,
            const ExhaustiveSearch::Chain& cheapest);

}  // namespace cp::sim
