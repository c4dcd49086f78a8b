// What a config.json says of rotary positions, and what they do to attention's scores.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shared/transformer/model.h"
#include "sim/planner/models/config_fields.h"
#include "sim/planner/models/families.h"

namespace cp::sim {

struct RopeFields {
  RotaryFrequencies rotary;
  std::optional<RotaryFrequencies> window;  // of layers with a window, where they may be others
  std::optional<double> share;              // partial_rotary_factor of rope_parameters
  // Of latent attention's scores: DeepSeek's models multiply them with the square of mscale_all_dim's factor.
  double latent_score_scale = 1;
  // What is said and not computed, each with the reason. Frequencies are unscaled in its place.
  std::vector<std::string> not_computed;
};

// Configs say it in one of three ways: rope_theta and rope_scaling; rope_parameters, which have both
// (transformers 5); or these for full_attention and sliding_attention apart. Gemma 3's older ones have
// rope_local_base_freq for layers with a window, which are not scaled.
RopeFields rope_of_config(const Family& family, ConfigFields& fields);

}  // namespace cp::sim
