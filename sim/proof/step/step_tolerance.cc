#include "sim/proof/step/step_tolerance.h"

#include <algorithm>
#include <cmath>

#include "sim/proof/run/tensor_tolerance.h"

namespace cp::sim {
namespace {

Movement movement_of(const Matrix64& expected, const std::vector<const Matrix64*>& moved) {
  Movement movement;
  double sum = 0;
  for (const Matrix64* matrix : moved) {
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      const double by = std::abs(matrix->values[i] - expected.values[i]);
      sum += by * by, movement.largest = std::max(movement.largest, by);
    }
  }
  movement.mean_square =
      sum / static_cast<double>(std::max<std::size_t>(1, moved.size() * expected.values.size()));
  return movement;
}

const NamedMatrices& state_of(const OptimizerState& state, int number) {
  return number == 0 ? state.first : state.second;
}

}  // namespace

std::int64_t longest_sum(const StepRequest& request) {
  const Transformer& model = request.model;
  return std::max({model.hidden, model.intermediate, model.vocab, model.q_heads * model.head_dim,
                   request.workload.tokens()});
}

StepExpectation::StepExpectation(const StepRequest& request, const StepValues& values,
                                 const ReferenceRules& rules, const OptimizerRules& optimizer, int runs)
    : moved_(std::max(roundoff(request.workload.dtype), roundoff(request.workload.gradient_dtype)) +
             roundoff(DType::f32) * std::sqrt(static_cast<double>(longest_sum(request)))),
      step_(reference_step(request.model, rules, optimizer, values.parameters, values.state, values.batch)) {
  for (int run = 0; run < runs; ++run) {
    ReferenceRules moved = rules;
    moved.roundings = {moved_, static_cast<std::uint64_t>(run)};
    const ReferenceStep& step = moved_steps_.emplace_back(
        reference_step(request.model, moved, optimizer, values.parameters, values.state, values.batch));
    loss_movement_ = std::max(loss_movement_, std::abs(step.pass.loss.loss() - step_.pass.loss.loss()));
    const std::vector<double>&expected = step_.pass.loss.of_rows, &of_rows = step.pass.loss.of_rows;
    for (std::size_t row = 0; row < expected.size(); ++row)
      row_movement_ = std::max(row_movement_, std::abs(of_rows[row] - expected[row]));
    norm_movement_ = std::max(norm_movement_, std::abs(step.norm - step_.norm));
  }
}

StepExpectation::Of StepExpectation::parameter(const std::string& tensor) const {
  const Matrix64& expected = step_.parameters.at(tensor);
  std::vector<const Matrix64*> moved;
  for (const ReferenceStep& step : moved_steps_) moved.push_back(&step.parameters.at(tensor));
  return {&expected, movement_of(expected, moved)};
}

StepExpectation::Of StepExpectation::state(const std::string& tensor, int state) const {
  const Matrix64& expected = state_of(step_.state, state).at(tensor);
  std::vector<const Matrix64*> moved;
  for (const ReferenceStep& step : moved_steps_) moved.push_back(&state_of(step.state, state).at(tensor));
  return {&expected, movement_of(expected, moved)};
}

}  // namespace cp::sim
