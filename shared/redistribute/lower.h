// Lowering writes a redistribution down as the plan of one rank.
#pragma once

#include "shared/plan/builder.h"
#include "shared/plan/plan.h"
#include "shared/redistribute/redistribution.h"

namespace cp {

// The plan's buffers of the caller: "input" (the rank's source shard, dense row-major in the local order of
// its index sets, in the source's dtype) and "output" (its target shard, in the target's). Either has 0
// elements where the rank holds nothing.
inline constexpr BufferId kRedistributeInput = 0;
inline constexpr BufferId kRedistributeOutput = 1;

// A complete plan. Its arena has no holes: the largest arena of all ranks is as large as the redistribution
// declared, or larger by padding if the target aligns buffers to more than an element. The plans of all ranks
// of both meshes belong together. Throws InvalidInput if the target lacks an operation.
Plan lower(const Redistribution& redistribution, Rank self, const Target& target = host_target());

// The plans of all ranks of both meshes, in ascending order of the ranks.
std::vector<Plan> lower_all(const Redistribution& redistribution, const Target& target = host_target());

// Appends the steps to a plan that is being written, on `stream`. `input` and `output` are buffers of the
// builder that hold the shards and nothing else. Callers need it whose plans do more than redistribute.
void append_redistribution(PlanBuilder& builder, StreamId stream, Rank self,
                           const Redistribution& redistribution, BufferId input, BufferId output);

}  // namespace cp
