#include "shared/context_parallel/sequence.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/sharding.h"

namespace cp {
namespace {

// `dim` counted from the front; `what` names it in the message.
int dim_of(const Shape& shape, int dim, std::string_view what) {
  const int num_dims = static_cast<int>(shape.size());
  if (num_dims == 0) throw InvalidInput(str(what, "=", dim, ", but a scalar has no dimension to split"));
  if (dim < -num_dims || dim >= num_dims) {
    throw InvalidInput(str(what, "=", dim, " is out of range for the shape ", join(shape, "x"), "; use ",
                           -num_dims, " .. ", num_dims - 1));
  }
  return dim < 0 ? dim + num_dims : dim;
}

const std::string& axis_name(const Layout& layout, int axis) { return layout.mesh.axes()[idx(axis)].name; }

// The dimension that the axis shards, if it shards one.
std::optional<int> sharded_dim(const Layout& layout, int axis) {
  const auto* shard = std::get_if<Shard>(&layout.placements[idx(axis)]);
  return shard == nullptr ? std::nullopt : std::optional<int>(shard->dim);
}

void require_finished(const Layout& layout) {
  if (!is_partial(layout)) return;
  throw InvalidInput(str("the input ", placements_to_string(layout), " holds partial values on axis ",
                         axis_name(layout, partial_axes(layout).front()),
                         "; reduce them first (reduce_partial, or a redistribution to R or S)"));
}

void require_innermost(const Layout& layout, int axis, int dim) {
  const int innermost = layout.shard_axes[idx(dim)].back();
  if (innermost == axis) return;
  throw InvalidInput(str("axis ", axis_name(layout, axis), " of ", placements_to_string(layout),
                         " splits dimension ", dim, " before axis ", axis_name(layout, innermost),
                         " does; gather ", axis_name(layout, innermost), " first"));
}

// The layout with `axis` as the innermost one of the shard's dimension, or as a replicated one.
Layout with_placement(const Layout& layout, int axis, const Placement& placement) {
  std::vector<Placement> placements = layout.placements;
  std::vector<std::vector<int>> order = layout.shard_axes;
  if (const std::optional<int> before = sharded_dim(layout, axis)) std::erase(order[idx(*before)], axis);
  if (const auto* shard = std::get_if<Shard>(&placement)) order[idx(shard->dim)].push_back(axis);
  placements[idx(axis)] = placement;
  return make_layout(layout.mesh, std::move(placements), layout.shape, layout.dtype, std::move(order));
}

void require_an_axis(const SequenceAxes& axes, const Mesh& mesh) {
  if (!axes.ring.empty() || !axes.ulysses.empty()) return;
  throw InvalidInput(
      str("neither a ring nor a Ulysses axis is named; name one or two axes of the mesh ", mesh.to_string()));
}

// Calls f for each buffer; an error says which of them it is about.
template <class Buffer, class F>
std::vector<SequenceMove> for_each_buffer(std::span<const Buffer> buffers, const F& f) {
  std::vector<SequenceMove> moves;
  for (const Buffer& buffer : buffers) {
    try {
      moves.push_back(f(buffer));
    } catch (const InvalidInput& error) {
      throw InvalidInput(str("buffer ", moves.size(), ": ", error.what()));
    }
  }
  return moves;
}

}  // namespace

SequenceMove then(const SequenceMove& first, const SequenceMove& second) {
  if (!equivalent(first.to, second.from)) {
    throw InvalidInput(str("a move to ", to_string(first.to), " cannot be followed by one from ",
                           to_string(second.from), "; begin the second where the first ends"));
  }
  return {first.from, second.to, first.grad_scale * second.grad_scale};
}

GradientOptions gradient_options(const SequenceMove& move, RedistributeOptions redistribute) {
  GradientOptions options;
  options.redistribute = std::move(redistribute);
  options.rule = GradientRule::replicated;
  options.scale = move.grad_scale;
  return options;
}

SequenceMove split_forward_gather_backward(const Layout& input, std::string_view axis, int dim,
                                           const Split& split, GradScale scale) {
  require_finished(input);
  const int mesh_axis = input.mesh.axis_index(axis);
  const int split_dim = dim_of(input.shape, dim, "dim");
  if (const std::optional<int> sharded = sharded_dim(input, mesh_axis)) {
    throw InvalidInput(str("axis ", axis, " of ", placements_to_string(input), " already splits dimension ",
                           *sharded, "; split along an axis that is replicated",
                           *sharded == split_dim ? "" : ", or move it to another dimension by all_to_all"));
  }
  return {input, with_placement(input, mesh_axis, Shard{split_dim, split}),
          grad_scale_factor(scale, input.mesh.axis_size(mesh_axis))};
}

SequenceMove gather_forward_split_backward(const Layout& input, std::string_view axis, GradScale scale) {
  require_finished(input);
  const int mesh_axis = input.mesh.axis_index(axis);
  const std::optional<int> dim = sharded_dim(input, mesh_axis);
  if (!dim) {
    throw InvalidInput(str("axis ", axis, " of ", placements_to_string(input),
                           " is replicated: there is nothing to gather; give the layout that "
                           "split_forward_gather_backward or layout_from_local returns"));
  }
  require_innermost(input, mesh_axis, *dim);
  return {input, with_placement(input, mesh_axis, Replicate{}),
          grad_scale_factor(scale, input.mesh.axis_size(mesh_axis))};
}

SequenceMove all_to_all(const Layout& input, std::string_view axis, int scatter_dim, int gather_dim) {
  require_finished(input);
  const int mesh_axis = input.mesh.axis_index(axis);
  const int scatter = dim_of(input.shape, scatter_dim, "scatter_dim");
  const int gather = dim_of(input.shape, gather_dim, "gather_dim");
  if (scatter == gather) {
    throw InvalidInput(str("scatter_dim=", scatter_dim, " and gather_dim=", gather_dim,
                           " are the same dimension of the shape ", join(input.shape, "x"),
                           "; an all-to-all needs two"));
  }
  const std::optional<int> sharded = sharded_dim(input, mesh_axis);
  if (sharded != gather) {
    throw InvalidInput(str("axis ", axis, " of ", placements_to_string(input),
                           " does not split gather_dim=", gather_dim, ": it ",
                           sharded ? str("splits dimension ", *sharded, "; gather that one")
                                   : str("is replicated; split_forward_gather_backward splits it first")));
  }
  require_innermost(input, mesh_axis, gather);
  return {input, with_placement(input, mesh_axis, Shard{scatter, Balanced{}}), 1};
}

Layout layout_from_local(const Mesh& mesh, Rank self, std::string_view axis, int dim,
                         const Shape& local_shape, DType dtype, std::optional<std::int64_t> gather_size) {
  const int mesh_axis = mesh.axis_index(axis), sharded = dim_of(local_shape, dim, "dim");
  const int num_ranks = mesh.axis_size(mesh_axis), index = mesh.coordinate(self, mesh_axis);
  const std::int64_t local = local_shape[idx(sharded)];
  if (!gather_size && local > std::numeric_limits<std::int64_t>::max() / num_ranks) {
    throw InvalidInput(str("a local size of ", local, " times ", num_ranks, " ranks is 2^63 or more"));
  }
  Shape shape = local_shape;
  shape[idx(sharded)] = gather_size.value_or(local * num_ranks);
  std::vector<Placement> placements(idx(mesh.num_axes()), Replicate{});
  placements[idx(mesh_axis)] = Shard{sharded, Balanced{}};
  Layout layout = make_layout(mesh, std::move(placements), std::move(shape), dtype);
  const std::int64_t expected = size(indices(layout, sharded, self));
  if (local != expected) {
    throw InvalidInput(str("rank ", self, ", index ", index, " of the ", num_ranks, " on axis ", axis,
                           ", has ", local, " along dimension ", sharded,
                           ", but its even part of gather_size=", *gather_size, " is ", expected,
                           "; for other sizes use make_layout with Sized"));
  }
  return layout;
}

PerSequence packed_sizes(std::span<const std::vector<std::int64_t>> all_split_sizes) {
  if (all_split_sizes.empty())
    throw InvalidInput("all_split_sizes has no rows; give one row of sizes for each rank of the axis");
  const std::size_t num_sequences = all_split_sizes.front().size();
  std::vector<std::int64_t> lengths(num_sequences, 0);
  SizedEach each{std::vector<std::vector<std::int64_t>>(num_sequences)};
  for (std::size_t rank = 0; rank < all_split_sizes.size(); ++rank) {
    const std::vector<std::int64_t>& sizes = all_split_sizes[rank];
    if (sizes.size() != num_sequences) {
      throw InvalidInput(
          str("all_split_sizes has ", sizes.size(), " sequences in row ", rank, " and ", num_sequences,
              " in row 0; give every rank a size of every sequence, 0 where it holds nothing of it"));
    }
    for (std::size_t sequence = 0; sequence < num_sequences; ++sequence) {
      const std::int64_t size = sizes[sequence];
      if (size < 0) {
        throw InvalidInput(str("all_split_sizes[", rank, "][", sequence, "]=", size,
                               ", but a rank cannot hold fewer than 0 elements; use at least 0"));
      }
      if (size > std::numeric_limits<std::int64_t>::max() - lengths[sequence]) {
        throw InvalidInput(
            str("sequence ", sequence, " of all_split_sizes has 2^63 elements or more; lengths are 64-bit"));
      }
      lengths[sequence] += size;
      each.sizes[sequence].push_back(size);
    }
  }
  return {cu_seqlens_of(lengths), std::move(each)};
}

Layout layout_from_local(const Mesh& mesh, Rank self, std::string_view axis, int dim,
                         const Shape& local_shape, DType dtype,
                         std::span<const std::vector<std::int64_t>> all_split_sizes) {
  const int mesh_axis = mesh.axis_index(axis);
  const int sharded = dim_of(local_shape, dim, "dim");
  PerSequence split = packed_sizes(all_split_sizes);
  const int num_ranks = mesh.axis_size(mesh_axis);
  if (all_split_sizes.size() != idx(num_ranks)) {
    throw InvalidInput(str("all_split_sizes has ", all_split_sizes.size(), " rows, but axis ", axis, " has ",
                           num_ranks, " ranks; give one row for each"));
  }
  Shape shape = local_shape;
  shape[idx(sharded)] = split.cu_seqlens.back();
  std::vector<Placement> placements(idx(mesh.num_axes()), Replicate{});
  placements[idx(mesh_axis)] = Shard{sharded, std::move(split)};
  Layout layout = make_layout(mesh, std::move(placements), std::move(shape), dtype);
  const std::int64_t expected = size(indices(layout, sharded, self)), local = local_shape[idx(sharded)];
  if (local != expected) {
    throw InvalidInput(str("rank ", self, ", index ", mesh.coordinate(self, mesh_axis), " of the ", num_ranks,
                           " on axis ", axis, ", has ", local, " along dimension ", sharded,
                           ", but its row of all_split_sizes sums to ", expected,
                           "; give every rank the sizes that it holds"));
  }
  return layout;
}

SequenceMove split_ring_then_ulysses(const Layout& input, const SequenceAxes& axes, int dim,
                                     const Split& ring_split, GradScale scale) {
  require_an_axis(axes, input.mesh);
  if (axes.ring.empty()) return split_forward_gather_backward(input, axes.ulysses, dim, Balanced{}, scale);
  const SequenceMove ring = split_forward_gather_backward(input, axes.ring, dim, ring_split, scale);
  if (axes.ulysses.empty()) return ring;
  return then(ring, split_forward_gather_backward(ring.to, axes.ulysses, dim, Balanced{}, scale));
}

SequenceMove gather_ulysses_then_ring(const Layout& input, const SequenceAxes& axes, GradScale scale) {
  require_an_axis(axes, input.mesh);
  if (axes.ring.empty()) return gather_forward_split_backward(input, axes.ulysses, scale);
  if (axes.ulysses.empty()) return gather_forward_split_backward(input, axes.ring, scale);
  const SequenceMove ulysses = gather_forward_split_backward(input, axes.ulysses, scale);
  const std::optional<int> inner = sharded_dim(input, input.mesh.axis_index(axes.ulysses));
  const std::optional<int> outer = sharded_dim(input, input.mesh.axis_index(axes.ring));
  if (outer && outer != inner) {
    throw InvalidInput(str("in ", placements_to_string(input), " axis ", axes.ulysses, " splits dimension ",
                           *inner, " and axis ", axes.ring, " dimension ", *outer,
                           "; bring both to the sequence by all_to_all first"));
  }
  return then(ulysses, gather_forward_split_backward(ulysses.to, axes.ring, scale));
}

Split sequence_split(const AttentionProblem& problem, const Balance& balance, int ring_size, bool is_query) {
  Strategy strategy;
  strategy.balance = balance;
  if (const std::optional<Refusal> refusal = refuse(problem, ring_size, strategy)) {
    throw InvalidInput(refusal->reason);
  }
  std::vector<Rank> ranks(idx(ring_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Layout home = home_layout(problem, ranks, strategy, is_query, 1);
  return split_along(home, home.mesh.axis_index("ring"));
}

std::vector<std::int64_t> cu_seqlens_of(std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> cu_seqlens = {0};
  for (const std::int64_t length : lengths) {
    if (length < 0) {
      throw InvalidInput(str("document ", cu_seqlens.size() - 1, " has length ", length, "; use at least 0"));
    }
    if (length > std::numeric_limits<std::int64_t>::max() - cu_seqlens.back()) {
      throw InvalidInput(str("the documents up to number ", cu_seqlens.size() - 1,
                             " have 2^63 elements or more; lengths are 64-bit"));
    }
    cu_seqlens.push_back(cu_seqlens.back() + length);
  }
  return cu_seqlens;
}

std::vector<SequenceMove> shard_buffers(std::span<const SequenceBuffer> buffers, const SequenceAxes& axes,
                                        const Split& ring_split) {
  return for_each_buffer(buffers, [&](const SequenceBuffer& buffer) {
    return split_ring_then_ulysses(buffer.layout, axes, buffer.seq_dim, ring_split);
  });
}

std::vector<SequenceMove> unshard_buffers(std::span<const Layout> buffers, const SequenceAxes& axes) {
  return for_each_buffer(buffers,
                         [&](const Layout& buffer) { return gather_ulysses_then_ring(buffer, axes); });
}

}  // namespace cp
