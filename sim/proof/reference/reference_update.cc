#include "sim/proof/reference/reference_update.h"

#include <algorithm>
#include <cmath>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/proof/reference/reference_parameters.h"

namespace cp::sim {

OptimizerState begin_optimizer(const Optimizer& optimizer, const NamedMatrices& parameters) {
  OptimizerState state;
  if (optimizer.states > 0) state.first = parameters.zeros();
  if (optimizer.states > 1) state.second = parameters.zeros();
  return state;
}

double norm_of(const NamedMatrices& gradients) {
  double squares = 0;
  for (const NamedMatrix& of : gradients.all()) {
    for (const double gradient : of.matrix.values) squares += gradient * gradient;
  }
  return std::sqrt(squares);
}

double clip_factor(const OptimizerRules& rules, double norm) {
  return rules.clip_norm ? std::min(1.0, *rules.clip_norm / (norm + 1e-6)) : 1;
}

double adam_updated(const OptimizerRules& rules, std::int64_t t, double theta, double m, double v) {
  const double of_first = 1 - std::pow(rules.beta1, static_cast<double>(t)),
               of_second = 1 - std::pow(rules.beta2, static_cast<double>(t));
  return theta - rules.learning_rate *
                     (rules.weight_decay * theta + (m / of_first) / (std::sqrt(v / of_second) + rules.eps));
}

void update(const OptimizerRules& rules, const NamedMatrices& gradients, double factor,
            NamedMatrices& parameters, OptimizerState& state) {
  const int states = rules.optimizer.states;
  if (states > 0 && state.first.numel() != parameters.numel())
    throw InvalidInput(str("the state of ", rules.optimizer.name, " has ", state.first.numel(),
                           " elements where there are ", parameters.numel(),
                           " parameters; begin it with begin_optimizer()"));
  ++state.steps;
  for (const auto& [name, gradient] : gradients.all()) {
    if (!is_trained(name)) continue;
    std::vector<double>& theta = parameters.at(name).values;
    std::vector<double>* const first = states > 0 ? &state.first.at(name).values : nullptr;
    std::vector<double>* const second = states > 1 ? &state.second.at(name).values : nullptr;
    for (std::size_t i = 0; i < theta.size(); ++i) {
      double g = factor * gradient.values[i];
      if (rules.optimizer.is_adam()) {
        double &m = (*first)[i], &v = (*second)[i];
        m = rules.beta1 * m + (1 - rules.beta1) * g;
        v = rules.beta2 * v + (1 - rules.beta2) * g * g;
        theta[i] = adam_updated(rules, state.steps, theta[i], m, v);
        continue;
      }
      g += rules.weight_decay * theta[i];
      if (first != nullptr) g = (*first)[i] = rules.momentum * (*first)[i] + g;
      theta[i] -= rules.learning_rate * g;
    }
  }
}

}  // namespace cp::sim
