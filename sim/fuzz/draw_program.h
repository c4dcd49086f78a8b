// Programs: small plans that no planner made, for what planners never write.
//
// A program is drawn item by item, each from the seed and its own number: an item left out, or one rank less,
// changes no other. A kernel is drawn for each rank by itself; a collective is one for all members of its
// group, with memory of each rank's own choice. Views are strided, have one to three dimensions, move through
// a Repeat, and lie in few buffers, so that steps of different streams meet. Where bytes would be read that
// nothing has written, or an output would stay unwritten, a fill is put before. Then one flaw is planted, if
// the case has one.
#pragma once

#include <vector>

#include "shared/plan/plan.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct DrawnProgram {
  // By rank; with groups, buffers, streams and steps, without edges and places of temporaries. Flaws of whole
  // steps are planted.
  std::vector<Plan> drafts;
  // By rank: steps outside of any Repeat that fit these drafts in all but that they write memory that they
  // use otherwise.
  std::vector<std::vector<Step>> misfits;
};
// Throws InvalidInput for counts out of range.
DrawnProgram make_program(const proto::Program& job);

// The drafts as whole plans, with edges as the case says and temporaries as PlanBuilder places them. Throws
// what PlanBuilder does.
std::vector<Plan> build_program(const proto::Program& job, const std::vector<Plan>& drafts);

}  // namespace cp::sim
