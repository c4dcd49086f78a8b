// The rates of serving software in the text of Rates. For read_rates.cc alone.
#pragma once

#include <vector>

#include "sim/cost/cluster/rates.h"
#include "sim/cost/cluster/rates.pb.h"
#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {

void take_serving_rates(const proto::Rates& message, Rates& rates);
void write_serving_rates(const Rates& rates, proto::Rates& message);
// Adds what is wrong with them, decode rates' cache_bits included.
void add_serving_errors(const Rates& rates, std::vector<FieldError>& errors);

}  // namespace cp::sim
