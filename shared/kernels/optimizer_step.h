// What an optimizer does to one parameter: the formulas of OptimizerRule (row_operations.h), in f32. They are
// constexpr, so that GPU kernels use the same ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>

#include "shared/plan/row_operations.h"

namespace cp {

// What is the same for all parameters of a step.
struct OptimizerNumbers {
  float rate = 0, clip = 1;     // the learning rate, and what gradients are multiplied with
  float first = 1, second = 1;  // 1 / (1 - b^t), as the moments are sums of t terms that began with zeros
  float beta1 = 0, beta2 = 0, eps = 0, decay = 0;
};

// Templates, since functions of the standard library that are no constant expressions may stand in no other
// constexpr function. `squared_norm` is that of all gradients, `step` counts from 1 on.
template <std::same_as<float> Value>
constexpr OptimizerNumbers optimizer_numbers(const OptimizerRule& rule, Value squared_norm, Value rate,
                                             double step) {
  // Added to the norm that clipping divides by, as torch.nn.utils.clip_grad_norm_ does.
  constexpr float kLeastNorm = 1e-6F;
  OptimizerNumbers numbers;
  numbers.rate = rate;
  if (rule.max_norm != 0)
    numbers.clip = std::min(1.0F, static_cast<float>(rule.max_norm) / (std::sqrt(squared_norm) + kLeastNorm));
  numbers.first = static_cast<float>(1 / (1 - std::pow(rule.beta1, step)));
  numbers.second = static_cast<float>(1 / (1 - std::pow(rule.beta2, step)));
  numbers.beta1 = static_cast<float>(rule.beta1), numbers.beta2 = static_cast<float>(rule.beta2);
  numbers.eps = static_cast<float>(rule.eps), numbers.decay = static_cast<float>(rule.decay);
  return numbers;
}

// AdamW: of the gradient, before it is clipped, the parameter and both moments.
template <std::same_as<float> Value>
constexpr void adamw(const OptimizerNumbers& numbers, Value gradient, Value& parameter, Value& mean,
                     Value& square) {
  const float g = gradient * numbers.clip;
  mean = numbers.beta1 * mean + (1 - numbers.beta1) * g;
  square = numbers.beta2 * square + (1 - numbers.beta2) * g * g;
  parameter -= numbers.rate * numbers.decay * parameter;
  parameter -= numbers.rate * (mean * numbers.first) / (std::sqrt(square * numbers.second) + numbers.eps);
}

// SGD: with momentum in `mean`, or without where that is null.
template <std::same_as<float> Value>
constexpr void sgd(const OptimizerNumbers& numbers, Value gradient, Value& parameter, Value* mean) {
  float g = gradient * numbers.clip;
  g += numbers.decay * parameter;
  if (mean != nullptr) {
    g += numbers.beta1 * *mean;
    *mean = g;
  }
  parameter -= numbers.rate * g;
}

}  // namespace cp
