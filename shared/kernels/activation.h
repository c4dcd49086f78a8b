// The activation functions of ActivationRule (row_operations.h) and their slopes. They are constexpr, so that
// GPU kernels use the same ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numbers>

#include "shared/plan/row_operations.h"

namespace cp {

struct Activated {
  float value = 0, slope = 0;
};

// Templates, since functions of the standard library that are no constant expressions may stand in no other
// constexpr function.
template <std::same_as<float> Value>
constexpr Value sigmoid(Value x) {
  return 1 / (1 + std::exp(-x));
}

// ln(1 + exp(x)), which is as good for large x. Its slope is the sigmoid.
template <std::same_as<float> Value>
constexpr Value softplus(Value x) {
  return std::max(x, Value{}) + std::log1p(std::exp(-std::abs(x)));
}

template <std::same_as<float> Value>
constexpr Activated activate(ActivationFunction function, Value x) {
  switch (function) {
    case ActivationFunction::silu: {
      const float s = sigmoid(x);
      return {x * s, s * (1 + x * (1 - s))};
    }
    case ActivationFunction::gelu: {
      const float phi = std::erfc(-x * static_cast<float>(std::numbers::sqrt2 / 2)) / 2;
      const float density =
          std::exp(-x * x / 2) * static_cast<float>(std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2);
      return {x * phi, phi + x * density};
    }
    case ActivationFunction::gelu_tanh: {
      constexpr float kCubic = 0.044715F;
      // sqrt(2/pi)
      constexpr auto kScale = static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
      const float t = std::tanh(kScale * (x + kCubic * x * x * x));
      return {x / 2 * (1 + t), (1 + t) / 2 + x / 2 * (1 - t * t) * kScale * (1 + 3 * kCubic * x * x)};
    }
    case ActivationFunction::relu:
      return x > 0 ? Activated{x, 1} : Activated{};
    case ActivationFunction::relu2:
      return x > 0 ? Activated{x * x, 2 * x} : Activated{};
    case ActivationFunction::quick_gelu: {
      constexpr float kSteepness = 1.702F;
      const float s = sigmoid(kSteepness * x);
      return {x * s, s * (1 + kSteepness * x * (1 - s))};
    }
    case ActivationFunction::identity:
      return {x, 1};
  }
  return {};
}

// What an activation with limits makes of the gate and of what it multiplies: f(gate) other, and the slopes
// of both.
struct Gated {
  float value = 0, gate_slope = 0, other_slope = 0;
};
template <std::same_as<float> Value>
constexpr Gated activate_gated(ActivationFunction function, float limit, float offset, Value gate,
                               Value other) {
  const bool limits = limit > 0, limits_gate = limits && gate > limit,
             limits_other = limits && (other > limit || other < -limit);
  const Activated of = activate(function, limits_gate ? limit : gate);
  const float factor = (!limits_other ? other : other > 0 ? limit : -limit) + offset;
  return {of.value * factor, limits_gate ? 0 : of.slope * factor, limits_other ? 0 : of.value};
}
// The same of an MLP without gates, where f(x) has no factor.
template <std::same_as<float> Value>
constexpr Gated activate_alone(ActivationFunction function, float limit, Value x) {
  const bool limited = limit > 0 && x > limit;
  const Activated of = activate(function, limited ? limit : x);
  return {of.value, limited ? 0 : of.slope, 0};
}

}  // namespace cp
