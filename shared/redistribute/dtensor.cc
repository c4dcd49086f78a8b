#include "shared/redistribute/dtensor.h"

#include <utility>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"

namespace cp {
namespace {

Layout replicated(const Layout& layout) {
  return make_layout(layout.mesh, std::vector<Placement>(layout.placements.size(), Replicate{}), layout.shape,
                     layout.dtype);
}

std::int64_t shard_bytes(const Layout& layout, Rank rank) {
  return layout.mesh.contains(rank) ? local_bytes(layout, rank) : 0;
}

void run(Device& device, Plan plan, const DTensor& in, const DTensor& out, RankTrace* trace) {
  const Bindings bindings = {{kRedistributeInput, in.data, in.size_bytes},
                             {kRedistributeOutput, out.data, out.size_bytes}};
  execute(plan, device, bindings, trace);
}

void require_shard(const DTensor& tensor, const Layout& layout, Rank rank, std::string_view what) {
  if (!equivalent(tensor.layout, layout) || tensor.layout.dtype != layout.dtype) {
    throw InvalidInput(str(what, " has layout ", to_string(tensor.layout), ", but the gradient's rule gives ",
                           to_string(layout), "; see gradient_layouts()"));
  }
  if (tensor.size_bytes != shard_bytes(layout, rank)) {
    throw InvalidInput(str(what, " has ", tensor.size_bytes, " bytes on rank ", rank, ", but its layout ",
                           to_string(layout), " has ", shard_bytes(layout, rank)));
  }
}

}  // namespace

Layout infer_layout(Mesh mesh, std::vector<Placement> placements, const Shape& local_shape, DType dtype) {
  Shape shape = local_shape;
  const int num_dims = static_cast<int>(shape.size());
  for (std::size_t axis = 0; axis < placements.size() && static_cast<int>(axis) < mesh.num_axes(); ++axis) {
    const auto* shard = std::get_if<Shard>(&placements[axis]);
    if (shard == nullptr || shard->dim < -num_dims || shard->dim >= num_dims)
      continue;  // make_layout says what is wrong
    const int dim = shard->dim < 0 ? shard->dim + num_dims : shard->dim;
    shape[static_cast<std::size_t>(dim)] *= mesh.axis_size(static_cast<int>(axis));
  }
  return make_layout(std::move(mesh), std::move(placements), std::move(shape), dtype);
}

DTensor from_local(const Layout& layout, Rank rank, void* data, std::int64_t size_bytes) {
  const std::int64_t expected = shard_bytes(layout, rank);
  if (size_bytes != expected) {
    const Shape shape = layout.mesh.contains(rank) ? local_shape(layout, rank) : Shape{0};
    throw InvalidInput(str("rank ", rank, " gives ", size_bytes, " bytes for its shard of ",
                           to_string(layout), ", which is ", join(shape, "x"), " = ", expected,
                           " bytes; pass the global shape when shards are uneven"));
  }
  return {layout, data, size_bytes};
}

void redistribute(Device& device, const DTensor& in, const DTensor& out, const RedistributeOptions& options,
                  RankTrace* trace) {
  Plan plan = lower(plan_redistribution(in.layout, out.layout, options), device.rank(), device.target());
  run(device, std::move(plan), in, out, trace);
}

void redistribute_backward(Device& device, const Layout& in, const Layout& out, const DTensor& grad_out,
                           const DTensor& grad_in, const GradientOptions& options, RankTrace* trace) {
  run(device, backward_plan(device.rank(), in, out, grad_out, grad_in, options, device.target()), grad_out,
      grad_in, trace);
}

Plan backward_plan(Rank self, const Layout& in, const Layout& out, const DTensor& grad_out,
                   const DTensor& grad_in, const GradientOptions& options, const Target& target) {
  const GradientLayouts layouts = gradient_layouts(in, out, options.rule);
  require_shard(grad_out, layouts.grad_out, self, "grad_out");
  require_shard(grad_in, layouts.grad_in, self, "grad_in");
  const Gradient gradient = plan_gradient(in, out, options);
  return lower_scaled(gradient.redistribution, gradient.scale, self, target);
}

void distribute_tensor(Device& device, const void* full, const DTensor& out, std::optional<Rank> root) {
  const Layout source =
      root ? make_layout(Mesh({{"root", 1}}, {*root}), {Replicate{}}, out.layout.shape, out.layout.dtype)
           : replicated(out.layout);
  // The device only reads what is bound as input.
  const DTensor in{source, const_cast<void*>(full), shard_bytes(source, device.rank())};
  redistribute(device, in, out);
}

void full_tensor(Device& device, const DTensor& in, void* full, const RedistributeOptions& options) {
  const Layout target = replicated(in.layout);
  redistribute(device, in, {target, full, shard_bytes(target, device.rank())}, options);
}

void reduce_partial(Device& device, const DTensor& in, const DTensor& out,
                    const RedistributeOptions& options) {
  if (!equivalent(out.layout, reduced_layout(in.layout))) {
    throw InvalidInput(str("reduce_partial of ", placements_to_string(in.layout), " gives ",
                           placements_to_string(reduced_layout(in.layout)), ", not ",
                           placements_to_string(out.layout), "; use redistribute for other layouts"));
  }
  redistribute(device, in, out, options);
}

}  // namespace cp
