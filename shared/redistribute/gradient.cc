#include "shared/redistribute/gradient.h"

#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

void require_linear(const Layout& layout) {
  for (const Placement& placement : layout.placements) {
    const auto* partial = std::get_if<Partial>(&placement);
    if (partial == nullptr || partial->op == ReduceOp::sum || partial->op == ReduceOp::avg) continue;
    throw InvalidInput(
        str("P(", name(partial->op), ") in ", placements_to_string(layout),
            " has no gradient: it is no linear map; reduce it outside of the differentiated part, or use ",
            "P(sum) or P(avg)"));
  }
}

// Averages that the forward pass has taken: the source is P(avg) on the axis, the target no longer.
double averaged(const Layout& source, const Layout& target) {
  double scale = 1;
  for (std::size_t axis = 0; axis < source.placements.size(); ++axis) {
    const auto* partial = std::get_if<Partial>(&source.placements[axis]);
    if (partial == nullptr || partial->op != ReduceOp::avg) continue;
    const bool stays = source.mesh == target.mesh && std::holds_alternative<Partial>(target.placements[axis]);
    if (!stays) scale /= source.mesh.axis_size(static_cast<int>(axis));
  }
  return scale;
}

}  // namespace

Layout reduced_layout(const Layout& layout) {
  Layout result = layout;
  for (Placement& placement : result.placements) {
    if (std::holds_alternative<Partial>(placement)) placement = Replicate{};
  }
  return result;
}

Layout dual(const Layout& layout) {
  require_linear(layout);
  Layout result = layout;
  for (Placement& placement : result.placements) {
    placement = std::visit(Overloaded{[](const Shard& shard) -> Placement { return shard; },
                                      [](const Replicate&) -> Placement { return Partial{ReduceOp::sum}; },
                                      [](const Partial&) -> Placement { return Replicate{}; }},
                           placement);
  }
  return result;
}

GradientLayouts gradient_layouts(const Layout& source, const Layout& target, GradientRule rule) {
  require_linear(source);
  if (rule == GradientRule::adjoint) return {dual(target), dual(source)};
  GradientLayouts layouts = {reduced_layout(target), reduced_layout(source)};
  if (source.mesh != target.mesh) return layouts;
  for (std::size_t axis = 0; axis < source.placements.size(); ++axis) {
    const bool stays = std::holds_alternative<Partial>(source.placements[axis]) &&
                       std::holds_alternative<Partial>(target.placements[axis]);
    if (!stays) continue;
    layouts.grad_out.placements[axis] = target.placements[axis];
    layouts.grad_in.placements[axis] = source.placements[axis];
  }
  return layouts;
}

Gradient plan_gradient(const Layout& source, const Layout& target, const GradientOptions& options) {
  validate_redistribution(source, target, options.redistribute);
  const GradientLayouts layouts = gradient_layouts(source, target, options.rule);
  RedistributeOptions backward = options.redistribute;
  backward.travel_dtype = options.backward_dtype.value_or(target.dtype);
  if (options.rule == GradientRule::replicated)
    return {plan_redistribution(layouts.grad_out, layouts.grad_in, backward), 1};
  return {plan_redistribution(layouts.grad_out, layouts.grad_in, backward), averaged(source, target)};
}

}  // namespace cp
