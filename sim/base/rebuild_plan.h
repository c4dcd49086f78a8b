// A plan once more, by the builder: for steps that were changed, left out or added.
#pragma once

#include <functional>

#include "shared/plan/builder.h"
#include "shared/plan/plan.h"

namespace cp::sim {

// Adds what is to stand for the step: itself, another one, several or none. Called in the order of ids,
// within its Repeat.
using AddStep = std::function<void(PlanBuilder&, const Step&, StepId)>;

// Streams, groups, buffers, Repeats and inputs are those of `plan`; edges, uses and places of temporaries are
// what PlanBuilder makes of the added steps. Throws what PlanBuilder does.
Plan rebuild_plan(const Plan& plan, const AddStep& add);

}  // namespace cp::sim
