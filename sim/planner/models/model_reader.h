// From the fields of a config.json to a model.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/planner/models/read_model.h"

namespace cp::sim {

// `config` is an object. Without source and repository; the sizes are not validated together. Throws what
// read_model does.
ReadModel model_of(const nlohmann::json& config, const std::string& filename, const std::string& name);

}  // namespace cp::sim
