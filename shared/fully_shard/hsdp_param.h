// An HsdpParam is one parameter of hybrid-sharded data parallelism (HSDP: sharded over some axes of a mesh,
// replicated over others). It derives the layouts that the parameter and its gradient have in turn, and makes
// the plans that lead from one to the next:
//
//                 shard axes       replicate axes    partial axes    other axes   dtype
//   sharded       S(shard_dim)     R                 R               the tensor's own
//   unsharded     R                R                 R               "            param_dtype
//   gradient      P(reduce)        P(reduce)         P(sum)          "            param_dtype
//   accumulated   "                "                 "               "            reduce_dtype
//   scattered     S(shard_dim)     "                 "               "            reduce_dtype
//   reduced       as sharded
//
//   unshard      sharded -> unsharded      all-gather over the shard axes
//   normalize    any -> gradient           reduces or moves what a backward pass left in another layout
//   accumulate   gradient -> accumulated   local
//   scatter      gradient -> scattered     reduce-scatter over the shard axes
//   all_reduce   scattered -> reduced      all-reduce over the other axes where the gradient is partial
//
// Going back from unsharded to sharded takes no step, since the shard was never given up. Each group that
// communicates is a group of the mesh along the axes on which two of these layouts differ; there is no other
// place where groups come from, and an axis that the mesh does not have is an error.
//
// These are the only rules of fully sharded data parallelism in the library. The step of a whole model
// follows them, too: UnshardWriter (unshard_writer.h) writes the same moves of a flat parameter for loops
// over layers.
//
// A parameter may be distributed already, for example by tensor parallelism. Data parallelism then splits
// each of its shards further; the axes of the earlier split stay outermost in the order of the dimension. The
// parameter's mesh must have the data-parallel axes, as PyTorch demands of a DTensor given to fully_shard;
// unified_layout() adds them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/placement/layout.h"
#include "shared/plan/plan.h"
#include "shared/redistribute/redistribution.h"

namespace cp {

struct HsdpOptions {
  // Names of mesh axes, or aliases that stand for several. The parameter is split over the shard axes, the
  // first one outermost, and kept in full over the replicate axes. Along both, ranks see different data, so
  // gradients have to be reduced over them.
  std::vector<std::string> shard, replicate;
  // Further axes along which ranks see the same data and hold the same parameter, but only parts of its
  // gradient, which add up. An example is the tensor-parallel axis for the weights of norms, if each tp rank
  // normalizes some of the rows only. Along axes that are not named at all the gradient is whole.
  std::vector<std::string> partial;
  int shard_dim = 0;
  Split split = Chunked{};
  // A parameter with fewer elements is not split: the shard axes replicate it, too.
  std::int64_t min_numel = 0;
  ReduceOp reduce = ReduceOp::avg;    // reduction over the data: avg or sum
  std::optional<DType> param_dtype;   // in which it is gathered and computed with; default: its own dtype
  std::optional<DType> reduce_dtype;  // in which gradients are added up and travel; default: param_dtype
};

// Which part of the reduction of a gradient a plan makes.
struct HsdpReduction {
  enum class Part : std::uint8_t { scatter, all_reduce, both };
  Part part = Part::both;
  bool accumulated = false;  // begin with the result of accumulate, not with a gradient of the backward pass
  bool add = false;          // add to the output instead of overwriting it; it is an inout buffer then
};

class HsdpParam {
 public:
  // `param` is the parameter's layout before data parallelism splits it. Throws InvalidInput if
  //   - an axis is not in the mesh, or comes twice;
  //   - the parameter is partial, or not replicated along one of the named axes;
  //   - the reduction is neither avg nor sum;
  //   - the dimension or the split does not fit, or a dtype cannot be converted.
  HsdpParam(const Layout& param, HsdpOptions options);

  const Layout& sharded() const { return sharded_; }
  const Layout& unsharded() const { return unsharded_; }
  const Layout& gradient() const { return gradient_; }
  const Layout& accumulated() const { return accumulated_; }
  const Layout& scattered() const { return scattered_; }
  const Layout& reduced() const { return sharded_; }

  bool is_split() const { return !shard_axes_.empty(); }
  // Indices of mesh axes; axes of one rank are left out. shard_axes() is in the order of the splits,
  // all_reduce_axes() in mesh order.
  const std::vector<int>& shard_axes() const { return shard_axes_; }
  const std::vector<int>& all_reduce_axes() const { return all_reduce_axes_; }
  // shard_group() has the ranks with which `self` gathers the parameter, in the order of their shards;
  // all_reduce_group() those with which it adds up the gradient of its shard. Either is {self} if there are
  // no others.
  std::vector<Rank> shard_group(Rank self) const { return param_.mesh.group_of(self, shard_axes_); }
  std::vector<Rank> all_reduce_group(Rank self) const { return param_.mesh.group_of(self, all_reduce_axes_); }
  const HsdpOptions& options() const { return options_; }

  // The moves between two of the layouts, as a redistribution.
  Redistribution unshard() const;
  Redistribution reduction(const HsdpReduction& request) const;
  // The moves that bring a gradient to gradient() if a backward pass left it in another layout: partial over
  // tensor-parallel ranks, for example, or split along another dimension than the parameter. Throws
  // InvalidInput unless it is on the parameter's mesh, has its shape, and agrees with gradient() along the
  // axes that the options name: there each rank has data of its own, and adding up is the job of
  // reduce_plan().
  Redistribution normalization(const Layout& produced) const;

  // Buffers: "shard" (input), "parameter" (output).
  Plan unshard_plan(Rank self, const Target& target = host_target()) const;
  // Buffers: "produced" (input), "gradient" (output).
  Plan normalize_plan(Rank self, const Layout& produced, const Target& target = host_target()) const;
  // Adds the gradient of one micro-batch, without communication. Buffers: "gradient" (input) and
  // "accumulated" (output for the first micro-batch, inout for the others).
  Plan accumulate_plan(Rank self, bool first, const Target& target = host_target()) const;
  // Buffers: the input is "gradient", "accumulated" or "scattered", the output "scattered" or "reduced" (an
  // inout buffer if request.add is set).
  Plan reduce_plan(Rank self, const HsdpReduction& request, const Target& target = host_target()) const;

 private:
  std::vector<int> axes_of(const std::vector<std::string>& names, std::vector<int>& taken) const;
  void derive_layouts(const std::vector<int>& replicate, const std::vector<int>& partial);
  void append_all_reduces(Layout at, std::vector<Move>& moves) const;

  Layout param_;
  HsdpOptions options_;
  std::vector<int> shard_axes_, all_reduce_axes_;
  Layout sharded_, unsharded_, gradient_, accumulated_, scattered_;
};

// The layout of a parameter that every rank of the mesh holds whole.
Layout replicated_layout(const Mesh& mesh, Shape shape, DType dtype);

// The layout `param` on a larger mesh: its own axes joined behind those of `data_parallel`, along which it is
// replicated. Both meshes must be slices of one mesh and hold `member`. Throws InvalidInput if they are not,
// or if they share an axis.
Layout unified_layout(const Mesh& data_parallel, const Layout& param, Rank member);

}  // namespace cp
