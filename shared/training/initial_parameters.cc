#include "shared/training/initial_parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/index.h"
#include "shared/kernels/philox.h"

namespace cp {
namespace {

bool is_of_a_norm(std::string_view tensor) {
  return tensor.ends_with("norm.weight");  // input_layernorm.weight, q_norm.weight, model.norm.weight
}

bool is_zero(std::string_view tensor) { return tensor.ends_with(".bias") || tensor.ends_with(".sinks"); }

bool adds_to_the_residual(std::string_view tensor) {
  return tensor.ends_with("o_proj.weight") || tensor.ends_with("down_proj.weight") ||
         tensor.ends_with("out_proj.weight");
}

// A normal number by Box and Muller's first formula. `place` counts the tensor's elements.
double normal(std::uint64_t tensor, std::uint64_t place, std::uint64_t seed) {
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
               static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(tensor >> 32)}},
             seed);
  // Within (0, 1): a logarithm of 0 would be none.
  const auto uniform = [](std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; };
  return std::sqrt(-2 * std::log(uniform(words.words[0]))) *
         std::cos(2 * std::numbers::pi * uniform(words.words[1]));
}

}  // namespace

InitialParameters::InitialParameters(const Transformer& model, std::uint64_t seed)
    : norm_(model.numerics.norm_unit_offset ? 0 : 1),
      residual_deviation_(deviation_ / std::sqrt(2 * static_cast<double>(model.layers))),
      seed_(seed) {}

void InitialParameters::operator()(int role, const TensorRun& run, std::span<double> values) const {
  const std::string_view tensor = run.block.tensor;
  if (role > 0 || is_zero(tensor)) return std::fill(values.begin(), values.end(), 0.0);
  if (is_of_a_norm(tensor)) return std::fill(values.begin(), values.end(), norm_);
  const double deviation = adds_to_the_residual(tensor) ? residual_deviation_ : deviation_;
  const std::uint64_t of_tensor = Hasher().add(tensor).digest().low;
  for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
    // A row has fewer than 2^32 columns, and a tensor fewer rows.
    const std::uint64_t place = (static_cast<std::uint64_t>(row) << 32) + static_cast<std::uint64_t>(column);
    for (std::int64_t i = 0; i < count; ++i)
      values[idx(at + i)] = deviation * normal(of_tensor, place + static_cast<std::uint64_t>(i), seed_);
  });
}

}  // namespace cp
