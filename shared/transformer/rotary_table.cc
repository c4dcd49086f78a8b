#include "shared/transformer/rotary_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "shared/base/index.h"

namespace cp {

namespace {

// The pair whose frequency has so many waves in the original positions, as a real number.
double pair_of(const RotaryFrequencies& rotary, double waves, std::int64_t rotated) {
  const double radians = 2 * std::numbers::pi * waves;
  return static_cast<double>(rotated) * std::log(static_cast<double>(rotary.original) / radians) /
         (2 * std::log(rotary.theta));
}

// How much of a frequency stays as it is, 0 to 1; of the rest the factor is taken.
double kept_by_llama3(const RotaryFrequencies& rotary, double frequency) {
  // How many of its waves the model saw at first: few of those of low frequencies.
  const double waves = static_cast<double>(rotary.original) * frequency / (2 * std::numbers::pi);
  if (waves < rotary.low) return 0;
  if (waves >= rotary.high) return 1;  // also where both limits are one, as in Llama 4
  return (waves - rotary.low) / (rotary.high - rotary.low);
}
double kept_by_yarn(const RotaryFrequencies& rotary, std::int64_t pair, std::int64_t rotated) {
  double first = pair_of(rotary, rotary.high, rotated), last = pair_of(rotary, rotary.low, rotated);
  if (rotary.whole_pairs) first = std::floor(first), last = std::ceil(last);
  // The bound of the latter counts columns, as in transformers; there are half as many pairs.
  first = std::max(first, 0.0), last = std::min(last, static_cast<double>(rotated - 1));
  if (first == last) last += 0.001;  // transformers'
  return 1 - std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
}

}  // namespace

double rotary_frequency(const RotaryFrequencies& rotary, std::int64_t pair, std::int64_t rotated) {
  const double frequency =
      std::pow(rotary.theta, -2 * static_cast<double>(pair) / static_cast<double>(rotated));
  double kept = 0;
  switch (rotary.scaling) {
    case RotaryScaling::none:
      return frequency;
    case RotaryScaling::linear:
      break;
    case RotaryScaling::llama3:
      kept = kept_by_llama3(rotary, frequency);
      break;
    case RotaryScaling::yarn:
      kept = kept_by_yarn(rotary, pair, rotated);
      break;
  }
  if (kept == 1) return frequency;
  return (1 - kept) * frequency / rotary.factor + kept * frequency;
}

std::vector<float> rotary_table(const Transformer& model, std::int64_t positions) {
  const std::int64_t rotated = model.rotated_dim(), pairs = rotated / 2;
  std::vector<const RotaryFrequencies*> tables = {&model.numerics.rotary};
  if (model.numerics.window_rotary) tables.push_back(&*model.numerics.window_rotary);
  std::vector<float> values(idx(std::ssize(tables) * positions * rotated));
  float* row = values.data();
  for (const RotaryFrequencies* rotary : tables) {
    std::vector<double> frequencies;
    for (std::int64_t pair = 0; pair < pairs; ++pair)
      frequencies.push_back(rotary_frequency(*rotary, pair, rotated));
    for (std::int64_t position = 0; position < positions; ++position, row += rotated) {
      for (std::int64_t pair = 0; pair < pairs; ++pair) {
        const double angle = static_cast<double>(position) * frequencies[idx(pair)];
        row[pair] = static_cast<float>(rotary->magnitude * std::cos(angle)),
        row[pair + pairs] = static_cast<float>(rotary->magnitude * std::sin(angle));
      }
    }
  }
  return values;
}

}  // namespace cp
