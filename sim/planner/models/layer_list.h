// What each layer of a model is, by its config.json: which keys it sees, and whether it has experts.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/transformer/model.h"
#include "sim/planner/models/config_fields.h"
#include "sim/planner/models/families.h"

namespace cp::sim {

// Returns `layers` kinds. Notes an error in `fields` for what does not add up.
//
// A config says which layers have a window (or a chunk) in one of four ways: layer_types lists what each
// layer is; the first max_window_layers layers see all keys; of sliding_window_pattern layers the last one
// does; or nothing is said, and it is as usual in the family. Which layers have the dense MLP among those
// with experts is said by first_k_dense_replace (the first ones), mlp_only_layers (a list of them),
// moe_layers (a list of the others), or by how many layers there are from one with experts to the next:
// decoder_sparse_step, interleave_moe_layer_step and moe_layer_freq.
std::vector<LayerKind> layers_of_config(const Family& family, ConfigFields& fields, std::int64_t layers,
                                        bool has_experts);

}  // namespace cp::sim
