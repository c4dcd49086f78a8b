#include "shared/transformer/rotary_table.h"

#include <cmath>
#include <numbers>

#include "shared/base/index.h"

namespace cp {

double rotary_frequency(const RotaryFrequencies& frequencies, std::int64_t pair, std::int64_t rotated) {
  const auto& [theta, factor, low, high, original, interleaved] = frequencies;
  const double frequency = std::pow(theta, -2 * static_cast<double>(pair) / static_cast<double>(rotated));
  if (factor == 1) return frequency;
  // How many of its waves the model saw at first: few of those of low frequencies.
  const double waves = static_cast<double>(original) * frequency / (2 * std::numbers::pi);
  if (waves < low) return frequency / factor;
  if (waves >= high) return frequency;  // also where both limits are one, as in Llama 4
  const double kept = (waves - low) / (high - low);
  return (1 - kept) * frequency / factor + kept * frequency;
}

std::vector<float> rotary_table(const Transformer& model, std::int64_t positions) {
  const std::int64_t rotated = model.rotated_dim(), pairs = rotated / 2;
  std::vector<float> table(idx(positions * rotated));
  for (std::int64_t position = 0; position < positions; ++position) {
    float* const row = table.data() + position * rotated;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle =
          static_cast<double>(position) * rotary_frequency(model.numerics.rotary, pair, rotated);
      row[pair] = static_cast<float>(std::cos(angle)),
      row[pair + pairs] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace cp
