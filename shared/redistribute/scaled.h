// Redistributions whose result is multiplied by a factor, as gradients are: the plan of the redistribution,
// and then a Scale of what it wrote. The factor is part of the plan and of the digest of its inputs, so that
// ranks which disagree about it are found before anything runs.
#pragma once

#include <string_view>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/plan/target.h"
#include "shared/redistribute/redistribution.h"

namespace cp {

// Throws InvalidInput for a scale that is not finite, and for one other than 1 of an integer dtype.
void validate_scale(double scale, DType dtype);

// lower(), and then the output times `scale`; just lower() for a scale of 1. The peak memory is the same.
// Throws as validate_scale() and lower() do.
Plan lower_scaled(const Redistribution& redistribution, double scale, Rank self,
                  const Target& target = host_target());

// The plans of all ranks of both meshes, in ascending order of the ranks.
std::vector<Plan> lower_all_scaled(const Redistribution& redistribution, double scale,
                                   const Target& target = host_target());

// The label of the Scale in the plan.
inline constexpr std::string_view kScaleLabel = "gradient scale";

// The time of the Scale, as the cost model counts a local step, on the rank that holds most of the target. 0
// for a scale of 1.
double scale_time_us(const Redistribution& redistribution, double scale, const CostModel& cost = {});

}  // namespace cp
