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
  }
  return {};
}

}  // namespace cp
