// Sequence sharding: how a context-parallel model splits, gathers and transposes its tensors.
//
// For a model's own tensors beside attention (examples/sequence_operations.cc; docs/embedding.md).
//
// Nothing here communicates. Each function returns the layouts between which a tensor moves, and the factor
// of its gradient. The move itself is a redistribution, on any device, of tensors with any number of
// dimensions and of any lengths:
//
//   const SequenceAxes axes{"ring", "ulysses"};
//   const Layout x = parse_layout("R,R", Mesh::parse("ring=2,ulysses=4"), {4096, 16, 64}, DType::bf16);
//   const SequenceMove in = split_ring_then_ulysses(x, axes, 0, HeadTail{});    // 512 x 16 x 64 on each rank
//   const SequenceMove heads = all_to_all(in.to, "ulysses", 1, 0);              // 2048 x 4 x 64
//   const SequenceMove out = gather_ulysses_then_ring(in.to, axes);             // 4096 x 16 x 64 again
//   Plan forward = lower(plan_redistribution(in.from, in.to), self);
//   Plan backward = lower_scaled(plan_redistribution(in.to, in.from), in.grad_scale, self);
//
// On a device: redistribute(device, x, y), and redistribute_backward(device, in.from, in.to, dy, dx,
// gradient_options(in)); a Job has both.
//
// A process group of other libraries is an axis of the mesh here. Each function takes the tensor's layout,
// and leaves alone what the other axes do to it.
//
//   MindSpeed-MM                                      here
//   all_to_all(.., scatter, gather, gather_size)      all_to_all(x, axis, scatter, gather); gather_size is
//                                                     x.shape[gather], see layout_from_local
//   split_forward_gather_backward(.., dim)            the same; split_sizes are Sized{..}
//   gather_forward_split_backward(.., dim)            the same; dim and gather_sizes are in the layout
//   load_balanced_split_forward_gather_backward       split_forward_gather_backward(x, axis, dim, HeadTail{})
//   packed_data_split_forward_gather_backward         .. PerSequence{cu_seqlens_of(lengths), Balanced{}})
//   load_balanced_gather_..                           gather_forward_split_backward
//   packed_data_gather_..(.., all_split_sizes)        the same, of layout_from_local(.., all_split_sizes), or
//                                                     of a layout by packed_sizes(all_split_sizes)
//   (packed_data_)split_.._with_cp                    split_ring_then_ulysses
//   (packed_data_)gather_.._with_cp                   gather_ulysses_then_ring
//   cal_split_sizes(length, n), .._multi(lengths, n)  Balanced, PerSequence{.., Balanced{}}; sizes are in
//                                                     local_shape(layout, rank)
//   grad_scale="up", "down", None                     GradScale (shared/redistribute/gradient.h)
//
//   PyTorch                                           here
//   context_parallel(mesh, buffers, seq_dims)         shard_buffers
//   context_parallel_unshard                          unshard_buffers
//   _RoundRobinLoadBalancer, _SequentialSharder       HeadTail, Balanced; sequence_split for any Balance
//
// A request that cannot be met throws InvalidInput: if the mesh lacks the axis, if a dim is out of range
// (dims may count from the end), if sizes or cu_seqlens do not fit the length, if the axis does not do what
// the function needs, and if values are partial.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/context_parallel/strategy.h"
#include "shared/placement/layout.h"
#include "shared/redistribute/gradient.h"
#include "shared/redistribute/redistribution.h"
#include "shared/redistribute/scaled.h"

namespace cp {

// A tensor goes from `from` to `to`. Its gradient comes in as `to` and goes back to `from`, times grad_scale;
// where a layout replicates, the gradient is copies of finished data, not contributions to a sum.
struct SequenceMove {
  Layout from, to;
  double grad_scale = 1;
};

// One move after another, as one: `second` must begin where `first` ends.
SequenceMove then(const SequenceMove& first, const SequenceMove& second);

// The gradient of a move, as redistribute_backward() and plan_gradient() take it: by the rule of finished
// copies, times grad_scale.
GradientOptions gradient_options(const SequenceMove& move, RedistributeOptions redistribute = {});

// The functions below that take a GradScale multiply the gradient by the number of ranks of their axis, or
// divide it. The defaults (down for a split, up for a gather) make the gradient the exact transpose, <R x, y>
// = <x, gradient of y>, if copies are equal and those of every rank count (contract 10). GradScale::none does
// so if copies count once.

// Every rank of `axis` keeps its part of `dim`, which takes only a local copy. The gradient is gathered. The
// axis must replicate `input`; it becomes the innermost axis that shards `dim`.
SequenceMove split_forward_gather_backward(const Layout& input, std::string_view axis, int dim,
                                           const Split& split = Balanced{},
                                           GradScale scale = GradScale::down);

// Every rank gets what the ranks of `axis` hold, in the order that it had before the split (the global one,
// unless other axes shard the dimension too). The gradient is split, locally. The axis must be the innermost
// one that shards its dimension.
SequenceMove gather_forward_split_backward(const Layout& input, std::string_view axis,
                                           GradScale scale = GradScale::up);

// Gathers gather_dim along `axis`, and instead splits scatter_dim (Balanced). The axis must be the innermost
// one that shards gather_dim; other axes may shard scatter_dim before it. The gradient goes the reverse way.
// For example, Ulysses attention gathers the sequence and splits the heads.
SequenceMove all_to_all(const Layout& input, std::string_view axis, int scatter_dim, int gather_dim);

// A layout from what one rank knows, for callers that have no global shape: `axis` shards `dim`, Balanced,
// and other axes replicate. gather_size is the whole tensor's size along `dim`; unset, the local size times
// the ranks, which is right only where all local sizes are equal. Throws when the local size is not self's
// part.
Layout layout_from_local(const Mesh& mesh, Rank self, std::string_view axis, int dim,
                         const Shape& local_shape, DType dtype, std::optional<std::int64_t> gather_size = {});

// The same for packed sequences that some other rule has split: index r of the axis has all_split_sizes[r][s]
// elements of sequence s, as in MindSpeed's packed_data_gather_forward_split_backward. Throws unless the
// matrix has one row for each rank of the axis, all rows are of one length, and self's row adds up to the
// local size.
Layout layout_from_local(const Mesh& mesh, Rank self, std::string_view axis, int dim,
                         const Shape& local_shape, DType dtype,
                         std::span<const std::vector<std::int64_t>> all_split_sizes);

// Such a matrix as a Split. The sequences lie one behind the other, and each is cut in the order of the
// ranks. Throws for rows of different lengths, for no rows, for negative sizes, and for sums of 2^63 or more.
PerSequence packed_sizes(std::span<const std::vector<std::int64_t>> all_split_sizes);

// ---- ring, then Ulysses ----

// The axes of the mesh that split the sequence. One of them may be "", which means that there is no such
// axis.
struct SequenceAxes {
  std::string ring, ulysses;
};

// The ring axis splits first, by `ring_split`; then the Ulysses axis splits what each ring index got
// (Balanced). To split documents one by one, use a ring_split PerSequence (packed_sizes() makes one of any
// sizes); Ulysses never looks at documents.
SequenceMove split_ring_then_ulysses(const Layout& input, const SequenceAxes& axes, int dim,
                                     const Split& ring_split, GradScale scale = GradScale::down);
// The way back. Both axes must shard the same dimension: if Ulysses has split heads, all_to_all brings them
// home first.
SequenceMove gather_ulysses_then_ring(const Layout& input, const SequenceAxes& axes,
                                      GradScale scale = GradScale::up);

// The ring split of a balance: that of the queries' home (home_layout), or of the keys'. For tensors whose
// sequence is q_len (kv_len) long. Throws for problems and balances that refuse() refuses.
Split sequence_split(const AttentionProblem& problem, const Balance& balance, int ring_size,
                     bool is_query = true);

// Lengths 10, 0, 40 -> 0/10/10/50, for PerSequence and AttentionProblem. Throws for a negative length and a
// sum of 2^63 or more.
std::vector<std::int64_t> cu_seqlens_of(std::span<const std::int64_t> lengths);

// ---- buffers ----

// A tensor that lies along the sequence: token ids, labels, positions, rotary tables.
struct SequenceBuffer {
  Layout layout;  // the axes of the sequence replicate it
  int seq_dim = 0;
};

// One move for each buffer, in order. A move writes the shard to other memory, so the whole buffer stays as
// it is, and going back to its former content takes no move.
std::vector<SequenceMove> shard_buffers(std::span<const SequenceBuffer> buffers, const SequenceAxes& axes,
                                        const Split& ring_split);
// One move for each sharded layout, in order: every element of the shards is back in its global place, on
// every rank. Buffers that need not be restored are left out.
std::vector<SequenceMove> unshard_buffers(std::span<const Layout> buffers, const SequenceAxes& axes);

}  // namespace cp
