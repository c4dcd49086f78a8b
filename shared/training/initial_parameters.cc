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

bool is_zero(std::string_view tensor) {
  return tensor.ends_with(".bias") || tensor.ends_with(".sinks") || tensor.ends_with("_correction_bias");
}

// Of a recurrence, whose norm has no 1 added to it in any model.
bool is_one(std::string_view tensor) {
  return tensor.ends_with("linear_attn.norm.weight") || tensor.ends_with("linear_attn.D");
}

bool adds_to_the_residual(std::string_view tensor) {
  return tensor.ends_with("o_proj.weight") || tensor.ends_with("down_proj.weight") ||
         tensor.ends_with("out_proj.weight");
}

// Two numbers within (0, 1), since a logarithm of 0 would be none. `place` counts the tensor's elements.
struct Uniform {
  double first = 0, second = 0;
};
Uniform uniform(std::uint64_t tensor, std::uint64_t place, std::uint64_t seed) {
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
               static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(tensor >> 32)}},
             seed);
  const auto of = [](std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; };
  return {of(words.words[0]), of(words.words[1])};
}

// A normal number by Box and Muller's first formula.
double normal(const Uniform& drawn) {
  return std::sqrt(-2 * std::log(drawn.first)) * std::cos(2 * std::numbers::pi * drawn.second);
}

// What an element of a recurrence's tensors begins with, as mamba_ssm's Mamba-2 has it: rates exp(A_log)
// from 1 to 16, time steps softplus(dt_bias) from 0.001 to 0.1, evenly by their logarithm. Weights of their
// convolution are those of PyTorch's Conv1d, even between -1 / sqrt(taps) and its opposite; those of LFM2's
// are normal, as Transformers make them.
double log_rate(const Uniform& drawn) { return std::log(1 + 15 * drawn.first); }
double time_step_bias(const Uniform& drawn) {
  const double step = 0.001 * std::pow(100, drawn.first);
  return step + std::log(-std::expm1(-step));
}
double tap(const Uniform& drawn, std::int64_t taps) {
  return (2 * drawn.first - 1) / std::sqrt(static_cast<double>(taps));
}

}  // namespace

InitialParameters::InitialParameters(const Transformer& model, std::uint64_t seed)
    : norm_(model.numerics.norm_unit_offset ? 0 : 1),
      residual_deviation_(deviation_ / std::sqrt(2 * static_cast<double>(model.layers))),
      taps_(model.recurrence ? model.recurrence->convolution : 1),
      seed_(seed) {}

void InitialParameters::operator()(int role, const TensorRun& run, std::span<double> values) const {
  const std::string_view tensor = run.block.tensor;
  if (role > 0 || is_zero(tensor)) return std::fill(values.begin(), values.end(), 0.0);
  if (is_one(tensor)) return std::fill(values.begin(), values.end(), 1.0);
  if (is_of_a_norm(tensor)) return std::fill(values.begin(), values.end(), norm_);
  const double deviation = adds_to_the_residual(tensor) ? residual_deviation_ : deviation_;
  const auto value = [&](const Uniform& drawn) {
    if (tensor.ends_with("linear_attn.A_log")) return log_rate(drawn);
    if (tensor.ends_with("linear_attn.dt_bias")) return time_step_bias(drawn);
    if (tensor.ends_with("linear_attn.conv1d.weight")) return tap(drawn, taps_);
    return deviation * normal(drawn);
  };
  const std::uint64_t of_tensor = Hasher().add(tensor).digest().low;
  for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
    // A row has fewer than 2^32 columns, and a tensor fewer rows.
    const std::uint64_t place = (static_cast<std::uint64_t>(row) << 32) + static_cast<std::uint64_t>(column);
    for (std::int64_t i = 0; i < count; ++i)
      values[idx(at + i)] = value(uniform(of_tensor, place + static_cast<std::uint64_t>(i), seed_));
  });
}

}  // namespace cp
