// Draws programs: small plans that no planner made, to try what planners never write.
//
// A program is drawn item by item, each from the seed and the item's number. So if an item is left out, or a
// rank, no other item changes. A kernel is drawn for each rank by itself. A collective is drawn once for all
// members of its group, and each rank chooses its own memory for it. Views are strided, have one to three
// dimensions, move through a Repeat, and lie in few buffers, so that steps of different streams meet. Where a
// step would read bytes that nothing has written, or an output would stay unwritten, a fill is put before it.
// At the end one flaw is planted, if the case has one.
#pragma once

#include <vector>

#include "shared/plan/plan.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct DrawnProgram {
  // One draft for each rank. A draft has groups, buffers, streams and steps, but no edges, and its
  // temporaries have no places yet. Flaws that concern whole steps are already planted.
  std::vector<Plan> drafts;
  // For each rank, steps that fit its draft outside of any Repeat, except for one thing: they write memory
  // that they also use in another way.
  std::vector<std::vector<Step>> misfits;
};
// Draws the program of the case. Throws InvalidInput if a count of the case is out of range.
DrawnProgram make_program(const proto::Program& job);

// Makes whole plans of the drafts: with edges as the case says, and temporaries where PlanBuilder places
// them. Throws what PlanBuilder throws.
std::vector<Plan> build_program(const proto::Program& job, const std::vector<Plan>& drafts);

}  // namespace cp::sim
