// Makes a model from the fields of a config.json.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/planner/models/read_model.h"

namespace cp::sim {

// The key that says how many prediction layers a config has.
inline constexpr const char* kPredictionLayersKey = "num_nextn_predict_layers";
// What is assumed where of so many layers that a config has no more than `planned` are planned.
std::string left_out_predictions(std::int64_t has, std::int64_t planned);

// `config` must be an object. The result has no source and no repository, and its sizes are not yet validated
// together. Throws what read_model() does.
ReadModel model_of(const nlohmann::json& config, const std::string& filename, const std::string& name);

}  // namespace cp::sim
