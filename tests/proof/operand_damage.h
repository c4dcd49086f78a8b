// Damage to the operands of kernels.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/proof/plan_damage.h"

namespace cp::testing {

// Calls visit(plan, id, op, other's id, other) for pairs of equal kernels of a rank.
template <class Op, class Visit>
void for_each_pair(std::vector<Plan>& plans, const Visit& visit) {
  for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op& op) {
    for (std::size_t other = 0; other < plan.segments.size(); ++other) {
      Op* second = operation<Op>(std::get<Step>(plan.segments[other]));
      if (second != nullptr && second != &op) visit(plan, id, op, static_cast<StepId>(other), *second);
    }
  });
}

// The operand of another kernel of the rank in place of this one's, wherever the two are of one shape.
template <class Op>
std::vector<Damage> take_operand(std::vector<Plan>& plans, const std::vector<View Op::*>& operands,
                                 const std::vector<std::string>& words) {
  std::vector<Damage> damages;
  for_each_pair<Op>(plans, [&](Plan& plan, StepId id, Op& op, StepId other_id, const Op& other) {
    const bool differ = std::any_of(operands.begin(), operands.end(),
                                    [&](const View Op::*view) { return op.*view != other.*view; });
    const bool alike = std::all_of(operands.begin(), operands.end(), [&](const View Op::*view) {
      return (op.*view).shape == (other.*view).shape && (op.*view).strides == (other.*view).strides;
    });
    if (!differ || !alike) return;
    std::vector<View> views;
    for (const View Op::*view : operands) views.push_back(other.*view);
    damages.push_back({str(at(plan, id), "with an operand of step ", other_id), words_at(plan, id, words),
                       [&op, operands, views] {
                         for (std::size_t i = 0; i < views.size(); ++i) op.*operands[i] = views[i];
                       }});
  });
  return damages;
}

// The operand with two of its dimensions changed for each other in memory, wherever both have the same size.
template <class Op>
std::vector<Damage> transpose_operand(std::vector<Plan>& plans, View Op::*operand, std::size_t a,
                                      std::size_t b, const std::vector<std::string>& words) {
  std::vector<Damage> damages;
  for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op& op) {
    View& view = op.*operand;
    if (view.shape.size() <= std::max(a, b) || view.shape[a] != view.shape[b] || view.shape[a] < 2) return;
    damages.push_back({str(at(plan, id), "transposed"), words_at(plan, id, words),
                       [&view, a, b] { std::swap(view.strides[a], view.strides[b]); }});
  });
  return damages;
}

// The operand one row further on or back in its buffer, wherever there is room; a flat one by an element.
template <class Op>
std::vector<Damage> shift_operand(std::vector<Plan>& plans, View Op::*operand,
                                  const std::vector<std::string>& words) {
  std::vector<Damage> damages;
  for_each<Op>(plans, [&](Plan& plan, StepId id, Step&, Op& op) {
    View& view = op.*operand;
    const std::size_t row_dim = view.shape.size() == 3 ? 2 : view.shape.size() == 2 ? 1 : 0;
    std::int64_t end = view.offset + 1;
    for (std::size_t d = 0; d < view.shape.size(); ++d) end += (view.shape[d] - 1) * view.strides[d];
    for (const std::int64_t by : {-view.strides[row_dim], view.strides[row_dim]}) {
      if (view.offset + by < 0 || end + by > plan.buffers[static_cast<std::size_t>(view.buffer)].numel)
        continue;
      damages.push_back({str(at(plan, id), "shifted by ", by), words_at(plan, id, words),
                         [&view, by] { view.offset += by; }});
    }
  });
  return damages;
}

}  // namespace cp::testing
