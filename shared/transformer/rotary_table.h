// The sines and cosines that rotary kernels read (row_operations.h), of a model's positions.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/transformer/model.h"

namespace cp {

// The frequency of pair i of d / 2 pairs, in radians for each position: theta^(-2 i / d), scaled as
// RotaryFrequencies say.
double rotary_frequency(const RotaryFrequencies& rotary, std::int64_t pair, std::int64_t rotated);

// The table [positions, d] of a step's buffer activations/positions: of each position d / 2 cosines, then d /
// 2 sines, all times the magnitude. With window_rotary, that of layers with a window stands behind it.
std::vector<float> rotary_table(const Transformer& model, std::int64_t positions);

}  // namespace cp
