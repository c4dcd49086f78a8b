// A step of a small model, as cases of cpsim fuzz write it, made into what plans are made of.
#pragma once

#include "shared/transformer/step_plan.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Throws InvalidInput for sizes, texts and layouts that make no sense. Whether the layout is legal for the
// model is refuse()'s question.
StepRequest make_step_request(const proto::ModelStep& step);

}  // namespace cp::sim
