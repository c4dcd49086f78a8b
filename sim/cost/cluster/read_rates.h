// Rates as text (sim/cost/cluster/rates.proto): presets of GPUs by name, and those that stand in a cluster's
// text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/rates.h"
#include "sim/cost/cluster/rates.pb.h"
#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {

// The preset of that name. Throws InvalidInput with the presets and the nearest one, or with a line
// `file:line:column: message` for each error of its text.
Rates find_rates(std::string_view name);
Rates read_rates(std::string_view text, std::string_view filename);
std::vector<std::string> rates_names();

Rates rates_of(const proto::Rates& message);
proto::Rates message_of(const Rates& rates);

// What is wrong with them: a number that is out of its range (none may be zero), a rate without a kernel, one
// that comes twice, one that is faster than the GPU's peak. Fields as paths in the text:
// "attention[2].tflops".
std::vector<FieldError> rates_errors(const Rates& rates);
// Rates whose text does not say how they are known.
std::vector<FieldError> provenance_errors(const proto::Rates& rates);

}  // namespace cp::sim
