// The fields of the cost model as flags, spelled as the fields of a scenario's `cost`: --step-latency-us 12.
#pragma once

#include <string_view>

#include <CLI/CLI.hpp>

#include "shared/redistribute/cost_model.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// The flags write into `cost`, which must outlive the parsing; what is not given stays as it is there.
void add_cost_flags(CLI::App& app, proto::CostModel& cost);

// The defaults of CostModel with what is set in `cost`.
CostModel cost_model(const proto::CostModel& cost);

// "dp=45,tp=300" into the message's map. Throws InvalidInput that quotes the text.
void parse_axis_gbps(std::string_view text, proto::CostModel& cost);

}  // namespace cp::cli
