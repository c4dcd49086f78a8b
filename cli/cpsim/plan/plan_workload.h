// Reads the workload of `cpsim plan`: phase, length, batch and dtypes, each from its flag or its default.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/transformer/workload.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// `stored` is the dtype in which the model's weights are stored, if it is known; a 16-bit one becomes the
// default dtype. For each default that is taken, some words are added to `assumptions`. Throws InvalidInput
// if a flag is missing, or means nothing in the phase.
Workload read_workload(const proto::PlanLayouts& job, std::optional<DType> stored,
                       std::vector<std::string>& assumptions);

}  // namespace cp::cli
