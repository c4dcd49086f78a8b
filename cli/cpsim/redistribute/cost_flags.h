// The fields of the cost model as flags. They are spelled as the fields of a scenario's `cost`:
// step_latency_us is set by --step-latency-us 12.
#pragma once

#include "cli/common/flags.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Adds a flag for each field. The flags write into `cost`, which must outlive the parsing. Fields whose flags
// are not given keep their values. Parsing throws InvalidInput for a text that is no number.
void add_cost_flags(FlagSet app, proto::CostModel& cost);

}  // namespace cp::cli
