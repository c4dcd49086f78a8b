// Makes a model from the fields of a config.json.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/planner/models/read_model.h"

namespace cp::sim {

// `config` must be an object. The result has no source and no repository, and its sizes are not yet validated
// together. Throws what read_model() does.
ReadModel model_of(const nlohmann::json& config, const std::string& filename, const std::string& name);

}  // namespace cp::sim
