// Which choices of experts a layout drops. Experts have room for so many rows of each rank, and a choice for
// which none is left adds nothing: so what a step computes depends on the layout, by this alone.
#pragma once

#include "shared/transformer/step_plan.h"
#include "sim/proof/reference/reference_rules.h"

namespace cp::sim {

// The rule of the request's layout, written here from the words of ExpertWriter and SlotsRule
// (shared/transformer/expert_writer.h, shared/plan/row_operations.h) and not from their code. Its
// micro-batches are those of the layout. It keeps a copy of the request, whose model must have experts.
DropRule drops_of(const StepRequest& request);

}  // namespace cp::sim
