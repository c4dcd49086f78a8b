// The rules of a single step: what its views have to be for its operation.
#pragma once

#include <cstdint>

#include "shared/plan/plan.h"

namespace cp {

// Throws InvalidInput unless the step's views lie in their buffers (in every iteration), have the sizes and
// dtypes that the operation needs, and are contiguous where it needs that. The builder, the checker and the
// fabric call this function, so that these rules are written once. A step outside of a Repeat has a
// repeat_count of 1.
void validate_step(const Plan& plan, const Step& step, std::int64_t repeat_count);

}  // namespace cp
