// Gradients of redistributions are redistributions too (contract 10).
//
// Seen as a map of stored bytes, those of every rank, a redistribution is a linear map R, and its gradient is
// the transpose: <R x, y> = <x, R^T y>. If ranks hold a value as copies, its gradient arrives in parts, one
// from each copy; if they hold it in parts, its gradient is the same for each part. So layouts have duals:
// Shard is the dual of Shard, and Replicate that of Partial(sum). The backward plan leads from the dual of
// the target to the dual of the source. For example, the gradient of an all-gather (Shard to Replicate) is a
// reduce-scatter (Partial(sum) to Shard).
//
// If the incoming gradient of a Replicate is declared to be replicated data instead, the rule of PyTorch's
// DTensor holds: the gradient goes back to the source's layout, and what the redistribution reduced stays
// Replicate there.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/redistribute/redistribution.h"

namespace cp {

// Shard stays, Replicate becomes Partial(sum), Partial(sum) becomes Replicate; Partial(avg) too, with a
// factor (see Gradient::scale). Throws InvalidInput for min, max and product, which have no gradient.
Layout dual(const Layout& layout);

// The layout with every Partial replaced by Replicate: where values lie once they are reduced.
Layout reduced_layout(const Layout& layout);

enum class GradientRule : std::uint8_t {
  adjoint,     // the transpose: the incoming gradient has the dual layout of the target
  replicated,  // PyTorch's table: it has the target's layout, with Replicate meaning copies of finished data
};

// The layout in which the gradient of source -> target comes in (grad_out), and the one in which it leaves
// (grad_in). They are the duals, or by PyTorch's table the layouts themselves, with Replicate for each
// Partial that is reduced. Throws InvalidInput as dual() does.
struct GradientLayouts {
  Layout grad_out, grad_in;
};
GradientLayouts gradient_layouts(const Layout& source, const Layout& target,
                                 GradientRule rule = GradientRule::adjoint);

// What MindSpeed's grad_scale says ("up", "down" or None): the gradient is multiplied with the number of
// ranks of the group that splits or gathers, divided by it, or left as it is.
enum class GradScale : std::uint8_t { none, up, down };
// 1, num_ranks or 1/num_ranks.
double grad_scale_factor(GradScale scale, int num_ranks);
// The same for a whole redistribution: the group has the ranks along all mesh axes that are split (Replicate
// -> Shard) or gathered (Shard -> Replicate). Throws InvalidInput for `up` and `down` if there is no such
// axis, or if the layouts are on two meshes.
double grad_scale_factor(GradScale scale, const Layout& source, const Layout& target);

struct GradientOptions {
  RedistributeOptions redistribute;  // of the backward plan
  GradientRule rule = GradientRule::adjoint;
  std::optional<DType> backward_dtype;  // what travels; the result has the source's dtype
  double scale = 1;                     // multiplies the gradient, such as by grad_scale_factor()
};
// Adds every field, for the keys by which callers keep plans.
Hasher& hash(Hasher& hasher, const GradientOptions& options);

// The backward plan of the redistribution source -> target, between its gradient_layouts(). Its plans are
// lower_scaled(redistribution, scale, ..) of scaled.h.
struct Gradient {
  Redistribution redistribution;
  // The factor of its result: options.scale, and by the adjoint rule also 1/n for each axis of n ranks whose
  // Partial(avg) is reduced, and n for each axis that becomes Partial(avg).
  double scale = 1;
};
// Throws InvalidInput as validate_redistribution() and gradient_layouts() do, for a scale that is not finite,
// and for a scaled integer dtype.
Gradient plan_gradient(const Layout& source, const Layout& target, const GradientOptions& options = {});

}  // namespace cp
