// The fields of the cost model as flags, spelled as the fields of a scenario's `cost`: --step-latency-us 12.
#pragma once

#include "cli/common/flags.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// The flags write into `cost`, which must outlive the parsing; what is not given stays as it is there.
void add_cost_flags(FlagSet app, proto::CostModel& cost);

}  // namespace cp::cli
