// Makes a request for plans from a step of a small model, as cases of cpsim fuzz write it.
#pragma once

#include "shared/transformer/step_plan.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Throws InvalidInput for sizes, texts and layouts that make no sense. It does not check whether the layout
// is legal for the model; refuse() does that.
StepRequest make_step_request(const proto::ModelStep& step);

}  // namespace cp::sim
