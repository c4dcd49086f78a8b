// Parts of a step that several layouts share.
//
// The layouts of a search differ in more than what a part of their step does: how data parallelism splits
// into shards and replicas does not matter to a stage that keeps whole parameters and gradients, and the
// update knows neither the attention nor the micro-batch. And which ranks a part talks to matters less than
// where these lie: two ranks of one node are as good as any other two. So the plan of such a part is made and
// replayed once, and what it declares is read once (known_parts.h).
#pragma once

#include "shared/base/digest.h"
#include "shared/transformer/step_plan.h"
#include "sim/cost/cluster/cluster.h"

namespace cp::sim {

// Whether it is one of those parts: all of training are.
bool may_be_shared(StepPart part);
// Reductions and the optimizer: behind all passes, once a step.
bool is_of_update(StepPart part);

// Both are of such a part, on rank `self`, beside model and workload: they tell apart requests that differ in
// their layouts alone. Equal keys mean
//   memory_key   equal memory (PlanMemory) as far as a step's memory is read from it. Which ranks the part
//                talks to does not matter
//   clock_key    equal clocks (StepClock) on the cluster
Digest memory_key(const StepRequest& request, StepPart part, int stage, Rank self);
Digest clock_key(const StepRequest& request, StepPart part, int stage, Rank self, const Cluster& cluster);

}  // namespace cp::sim
