// The optimizer's update of a step on one device in float64, by the formulas of PyTorch: clip_grad_norm_,
// AdamW, and SGD with or without momentum.
//
// With g the gradients, clipped together, and theta a parameter, step t = 1, 2, ...:
//   AdamW   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//           theta = theta (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   SGD     g = g + decay theta; with momentum u = momentum u + g, and u in g's place; theta = theta - lr g
// The decay is of all parameters alike, as in the plans, whose optimizers know no names.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/transformer/workload.h"
#include "sim/proof/reference/matrix64.h"

namespace cp::sim {

// The defaults are PyTorch's for AdamW; clip_norm is what most training uses.
struct OptimizerRules {
  Optimizer optimizer;  // its number of states says which it is
  double learning_rate = 1e-3, weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // AdamW
  double momentum = 0.9;                          // SGD with a state
  // Gradients are multiplied with min(1, clip_norm / (norm + 1e-6)), norm being that of all together. Unset:
  // they are not clipped.
  std::optional<double> clip_norm = 1;
};

// As many of the two as the optimizer has states: both moments, or the momentum in `first`. Others are empty.
struct OptimizerState {
  std::int64_t steps = 0;
  NamedMatrices first, second;
};
// That of an optimizer that has made no step: zeros.
OptimizerState begin_optimizer(const Optimizer& optimizer, const NamedMatrices& parameters);

double norm_of(const NamedMatrices& gradients);
double clip_factor(const OptimizerRules& rules, double norm);
// What AdamW's step number t makes of a parameter, where the moments behind it are m and v.
double adam_updated(const OptimizerRules& rules, std::int64_t t, double theta, double m, double v);
// Updates parameters and state by gradients that are multiplied with `factor` first.
void update(const OptimizerRules& rules, const NamedMatrices& gradients, double factor,
            NamedMatrices& parameters, OptimizerState& state);

}  // namespace cp::sim
