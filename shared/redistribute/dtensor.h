// DTensor: a distributed tensor on the caller's buffers, which any Device can redistribute.
//
// This is a facade over layouts, plans and a device. Every function that takes a Device is collective: all
// ranks of the layouts' meshes call it, each with its own device, in the same order. Plans are made for the
// device's target, which is the same on all of them. Nothing is cached and nothing is owned. If you repeat a
// redistribution, keep its plan (plan_redistribution, lower) and execute that, or use a Job, which keeps
// plans for you.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/target.h"
#include "shared/plan/trace.h"
#include "shared/redistribute/gradient.h"
#include "shared/redistribute/redistribution.h"

namespace cp {

// A rank's shard of a distributed tensor: `data` is dense row-major memory of the device, in the local order
// of the layout's index sets, `size_bytes` = local_bytes(layout, rank); nullptr and 0 where the rank holds
// nothing.
struct DTensor {
  Layout layout;
  void* data = nullptr;
  std::int64_t size_bytes = 0;
};

// The layout of a tensor of which only one rank's local shape is known. It assumes that every sharded
// dimension is split evenly, as PyTorch's from_local without a shape does. For uneven shards that is wrong;
// they need the global shape, so use make_layout.
Layout infer_layout(Mesh mesh, std::vector<Placement> placements, const Shape& local_shape, DType dtype);

// Wraps a local shard, whose memory stays the caller's. Throws InvalidInput if `size_bytes` is not the size
// of the layout's shard on this rank.
DTensor from_local(const Layout& layout, Rank rank, void* data, std::int64_t size_bytes);
// The shard's memory is the tensor's own; here for symmetry with from_local.
inline void* to_local(const DTensor& tensor) { return tensor.data; }

// Moves `in` to the layout of `out`, into out's memory. The memories must not overlap.
void redistribute(Device& device, const DTensor& in, const DTensor& out,
                  const RedistributeOptions& options = {}, RankTrace* trace = nullptr);

// The gradient of redistribute(in -> out): from `grad_out` to `grad_in`, whose layouts are gradient_layouts()
// of gradient.h. Multiplies by the gradient's scale: options.scale, and the averages that the adjoint takes.
void redistribute_backward(Device& device, const Layout& in, const Layout& out, const DTensor& grad_out,
                           const DTensor& grad_in, const GradientOptions& options = {},
                           RankTrace* trace = nullptr);

// The plan that redistribute_backward() runs, for callers that keep plans. Bind its kRedistributeInput to
// grad_out and its kRedistributeOutput to grad_in. Throws InvalidInput if their layouts or sizes are not
// those of gradient_layouts().
Plan backward_plan(Rank self, const Layout& in, const Layout& out, const DTensor& grad_out,
                   const DTensor& grad_in, const GradientOptions& options, const Target& target);

// Fills `out` from the whole tensor `full` (global shape, row-major). Without a root every rank has the whole
// tensor and takes its part of it; with a root, only that rank's tensor is read, and it sends the parts to
// the others.
void distribute_tensor(Device& device, const void* full, const DTensor& out, std::optional<Rank> root = {});

// Writes the whole tensor into `full` (global shape, row-major) on every rank of its mesh. Partial values are
// reduced.
void full_tensor(Device& device, const DTensor& in, void* full, const RedistributeOptions& options = {});

// Moves `in` to reduced_layout(in.layout): contributions become finished values, and everything else stays as
// it is.
void reduce_partial(Device& device, const DTensor& in, const DTensor& out,
                    const RedistributeOptions& options = {});

}  // namespace cp
