#include "shared/redistribute/gradient.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/redistribute/scaled.h"

namespace cp {
namespace {

void require_linear(const Layout& layout) {
  for (const Placement& placement : layout.placements) {
    const auto* partial = std::get_if<Partial>(&placement);
    if (partial == nullptr || partial->op == ReduceOp::sum || partial->op == ReduceOp::avg) continue;
    throw InvalidInput(str("P(", name(partial->op), ") in ", placements_to_string(layout),
                           " has no gradient, because it is not a linear map; reduce it outside of the "
                           "differentiated part, or use ",
                           "P(sum) or P(avg)"));
  }
}

// Averages that the forward pass has taken: the source is P(avg) on the axis, the target no longer. And those
// that it has left to take, where only the target is: each rank holds the value then, and the gradient of
// each of these n copies counts.
double averaged(const Layout& source, const Layout& target) {
  double scale = 1;
  for (std::size_t axis = 0; axis < target.placements.size(); ++axis) {
    const auto* partial = std::get_if<Partial>(&target.placements[axis]);
    if (partial == nullptr || partial->op != ReduceOp::avg) continue;
    const bool stays = source.mesh == target.mesh && std::holds_alternative<Partial>(source.placements[axis]);
    if (!stays) scale *= target.mesh.axis_size(static_cast<int>(axis));
  }
  for (std::size_t axis = 0; axis < source.placements.size(); ++axis) {
    const auto* partial = std::get_if<Partial>(&source.placements[axis]);
    if (partial == nullptr || partial->op != ReduceOp::avg) continue;
    const bool stays = source.mesh == target.mesh && std::holds_alternative<Partial>(target.placements[axis]);
    if (!stays) scale /= source.mesh.axis_size(static_cast<int>(axis));
  }
  return scale;
}

}  // namespace

Hasher& hash(Hasher& hasher, const GradientOptions& options) {
  const auto& [redistribute, rule, backward_dtype, scale] = options;  // all fields there are
  hash(hasher, redistribute).add(static_cast<int>(rule));
  return hasher.add(backward_dtype ? static_cast<int>(*backward_dtype) : -1).add(scale);
}

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

double grad_scale_factor(GradScale scale, int num_ranks) {
  switch (scale) {
    case GradScale::none:
      return 1;
    case GradScale::up:
      return num_ranks;
    case GradScale::down:
      return 1.0 / num_ranks;
  }
  return 1;
}

double grad_scale_factor(GradScale scale, const Layout& source, const Layout& target) {
  if (scale == GradScale::none) return 1;
  const std::string_view word = scale == GradScale::up ? "up" : "down";
  if (source.mesh != target.mesh) {
    throw InvalidInput(str(
        "the gradient scale ", word, " counts the ranks of a group of one mesh, but the tensor goes from ",
        source.mesh.to_string(), " to ", target.mesh.to_string(), "; use none, or the same mesh for both"));
  }
  int num_ranks = 1;
  bool found = false;
  for (std::size_t axis = 0; axis < source.placements.size(); ++axis) {
    const Placement &from = source.placements[axis], &to = target.placements[axis];
    const bool splits = std::holds_alternative<Replicate>(from) && std::holds_alternative<Shard>(to);
    const bool gathers = std::holds_alternative<Shard>(from) && std::holds_alternative<Replicate>(to);
    if (!splits && !gathers) continue;
    found = true;
    num_ranks *= source.mesh.axis_size(static_cast<int>(axis));
  }
  if (!found) {
    throw InvalidInput(str("the gradient scale ", word,
                           " counts the ranks that split or gather, but no axis goes from R to S ",
                           "or from S to R in ", placements_to_string(source), " -> ",
                           placements_to_string(target), "; use none"));
  }
  return grad_scale_factor(scale, num_ranks);
}

Gradient plan_gradient(const Layout& source, const Layout& target, const GradientOptions& options) {
  validate_redistribution(source, target, options.redistribute);
  const GradientLayouts layouts = gradient_layouts(source, target, options.rule);
  RedistributeOptions backward = options.redistribute;
  backward.travel_dtype = options.backward_dtype.value_or(target.dtype);
  const bool adjoint = options.rule == GradientRule::adjoint;
  const double scale = options.scale * (adjoint ? averaged(source, target) : 1);
  validate_scale(scale, layouts.grad_in.dtype);
  return {plan_redistribution(layouts.grad_out, layouts.grad_in, backward), scale};
}

}  // namespace cp
