// The workload of `cpsim plan`: phase, length, batch and dtypes, each from its flag or its default.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/transformer/workload.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// `stored`: in what the model's weights are. Adds a word to `assumptions` for each default that is taken.
// Throws InvalidInput for a flag that is missing, or that means nothing in the phase.
Workload read_workload(const proto::PlanLayouts& job, std::optional<DType> stored,
                       std::vector<std::string>& assumptions);

}  // namespace cp::cli
