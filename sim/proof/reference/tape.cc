#include "sim/proof/reference/tape.h"

#include <cstddef>

#include "shared/base/digest.h"
#include "sim/proof/run/input_values.h"

namespace cp::sim {

Variable Tape::input(Matrix64 value) { return record(std::move(value), nullptr); }

Variable Tape::record(Matrix64 value, Backward backward) {
  round(value);
  nodes_.push_back({std::move(value), {}, std::move(backward)});
  return {this, nodes_.size() - 1};
}

void Tape::backward(const std::vector<std::pair<Variable, double>>& weighted) {
  for (Node& node : nodes_) node.gradient = Matrix64(node.value.rows, node.value.columns);
  for (const auto& [variable, weight] : weighted) {
    for (double& gradient : variable.gradient().values) gradient += weight;
  }
  // Whatever uses a variable stands behind it, so that its gradient is complete when its turn comes.
  for (std::size_t number = nodes_.size(); number-- > 0;) {
    Node& node = nodes_[number];
    round(node.gradient);
    if (node.backward) node.backward(node.value, node.gradient);
  }
}

void Tape::round(Matrix64& matrix) {
  if (roundings_.relative == 0) return;
  // Of each matrix a stream of its own.
  const std::uint64_t stream = Hasher().add(roundings_.seed).add(rounded_++).digest().low;
  const std::vector<double> units = unit_values(std::ssize(matrix.values), stream);
  for (std::size_t i = 0; i < units.size(); ++i)
    matrix.values[i] *= 1 + roundings_.relative * (2 * units[i] - 1);
}

}  // namespace cp::sim
