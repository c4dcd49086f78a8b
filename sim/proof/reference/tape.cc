#include "sim/proof/reference/tape.h"

namespace cp::sim {

Variable Tape::input(Matrix64 value) { return record(std::move(value), nullptr); }

Variable Tape::record(Matrix64 value, Backward backward) {
  nodes_.push_back({std::move(value), {}, std::move(backward)});
  return {this, nodes_.size() - 1};
}

void Tape::backward(const std::vector<std::pair<Variable, double>>& weighted) {
  for (Node& node : nodes_) node.gradient = Matrix64(node.value.rows, node.value.columns);
  for (const auto& [variable, weight] : weighted) {
    for (double& gradient : variable.gradient().values) gradient += weight;
  }
  // Whatever uses a variable stands behind it, so that its gradient is complete when its turn comes.
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    if (node->backward) node->backward(node->value, node->gradient);
  }
}

}  // namespace cp::sim
