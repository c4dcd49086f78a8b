// Random redistributions: pairs of legal layouts of one tensor, and options, within what the planner accepts.
#pragma once

#include <iosfwd>

#include <rapidcheck.h>

#include "shared/redistribute/redistribution.h"

namespace cp::testing {

struct RedistributeCase {
  Layout source, target;
  RedistributeOptions options;
};
void showValue(const RedistributeCase& request, std::ostream& out);

// What a case may contain beyond Shard and Replicate.
struct CaseKinds {
  enum class Partials { none, linear, all };
  Partials partials = Partials::all;  // linear: sum, and avg over 2 or 4 ranks, which no f32 rounds
  bool casts = true;                  // source, target and travelling dtype may differ
  // Memory factors that may have no plan: below 1, and 1 where casts need temporaries, too.
  bool tight = true;
  int max_ranks = 12;  // of each mesh
};

// Meshes of 1 to 3 axes (size 1 included) over 1 to max_ranks ranks in any order, not all from 0; for source
// and target the same one, another one over the same ranks, or one over other ranks, which may overlap.
// Shapes of 1 to 3 dimensions of size 0, 1, n k and n k +- 1 for the size n of an axis, of a few thousand
// elements at most. All splits, any order of the axes of a dimension. Draws the whole case at once: nothing
// shrinks.
rc::Gen<RedistributeCase> any_case(CaseKinds kinds = {});

// The case of a seed: equal in every process.
RedistributeCase case_of_seed(std::uint64_t seed, CaseKinds kinds = {});

}  // namespace cp::testing
