// HsdpParam: one parameter of hybrid-sharded data parallelism, as layouts and the plans that lead between
// them.
//
//                 shard axes       replicate axes    partial axes    other axes   dtype
//   sharded       S(shard_dim)     R                 R               the tensor's own
//   unsharded     R                R                 R               "            param_dtype
//   gradient      P(reduce)        P(reduce)         P(sum)          "            param_dtype
//   accumulated   "                "                 "               "            reduce_dtype
//   scattered     S(shard_dim)     "                 "               "            reduce_dtype
//   reduced       as sharded
//
//   unshard      sharded -> unsharded        all-gather over the shard axes
//   normalize    any -> gradient             what a backward pass left otherwise on the other axes: added up there, or moved
//   accumulate   gradient -> accumulated     local
//   scatter      gradient -> scattered       reduce-scatter over the shard axes
//   all_reduce   scattered -> reduced        all-reduce over the other axes where the gradient is partial
//
// Going back to sharded takes no step: the shard was never given up. Every group that communicates is one of
// the mesh along the axes on which two of these layouts differ; there is no other place where groups come
// from. What the mesh does not have is an error.
//
// These are the only rules of fully sharded data parallelism here. A whole model's step goes by them, too:
// UnshardWriter (unshard_writer.h) writes the same moves of a flat parameter for loops over layers.
//
// A parameter may be distributed already, by tensor parallelism say; data parallelism then splits each of its
// shards, whose axes stay outermost in the order of the dimension. Its mesh has the data-parallel axes
// (PyTorch: as DTensor compatible with the mesh given to fully_shard), or gets them by unified_layout().
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
  // Axes of the mesh, or aliases for several. Over the shard axes the parameter is split, the first one
  // outermost; over the replicate axes it is kept in full. On both ranks see different data, so that
  // gradients are still to be reduced.
  std::vector<std::string> shard, replicate;
  // Further axes on which ranks see the same data and hold the same parameter, but parts of its gradient that
  // add up: that of tensor parallelism for norms, which see only some rows there. On axes that are named
  // nowhere the gradient is whole.
  std::vector<std::string> partial;
  int shard_dim = 0;
  Split split = Chunked{};
  std::int64_t min_numel = 0;         // smaller parameters are not split: the shard axes replicate, too
  ReduceOp reduce = ReduceOp::avg;    // over the data; or sum
  std::optional<DType> param_dtype;   // of computation, and of what is gathered; default: the parameter's
  std::optional<DType> reduce_dtype;  // in which gradients are added up and travel; default: param_dtype
};

// How gradients are reduced.
struct HsdpReduction {
  enum class Part : std::uint8_t { scatter, all_reduce, both };
  Part part = Part::both;
  bool accumulated = false;  // begins with what accumulate left, not with a gradient of the backward pass
  bool add = false;          // to what the output holds, which is then an inout buffer
};

class HsdpParam {
 public:
  // `param`: where the parameter lies before data parallelism splits it. Throws InvalidInput for an axis that
  // the mesh does not have or that comes twice, a parameter that is partial or, on one of these axes, not
  // replicated; a reduction that is neither avg nor sum; a dimension or split that does not fit; dtypes that
  // cannot be converted.
  HsdpParam(const Layout& param, HsdpOptions options);

  const Layout& sharded() const { return sharded_; }
  const Layout& unsharded() const { return unsharded_; }
  const Layout& gradient() const { return gradient_; }
  const Layout& accumulated() const { return accumulated_; }
  const Layout& scattered() const { return scattered_; }
  const Layout& reduced() const { return sharded_; }

  bool is_split() const { return !shard_axes_.empty(); }
  // Axes of the mesh, without those of one rank: in the order of the splits; in mesh order.
  const std::vector<int>& shard_axes() const { return shard_axes_; }
  const std::vector<int>& all_reduce_axes() const { return all_reduce_axes_; }
  // The ranks that `self` gathers the parameter with, in the order of their shards; and those that add up the
  // gradient of its shard with it. {self} where there are no others.
  std::vector<Rank> shard_group(Rank self) const { return param_.mesh.group_of(self, shard_axes_); }
  std::vector<Rank> all_reduce_group(Rank self) const { return param_.mesh.group_of(self, all_reduce_axes_); }
  const HsdpOptions& options() const { return options_; }

  // The moves between two states, one for each operation.
  Redistribution unshard() const;
  Redistribution reduction(const HsdpReduction& request) const;
  // Of a gradient that a backward pass leaves in a layout of its own: partial over tensor-parallel ranks,
  // say, or split along another dimension than the parameter. Throws InvalidInput unless it lies on the
  // parameter's mesh, has its shape, and is what gradient() is on the axes that the options name: there each
  // rank has its own data, and it is reduce_plan() that adds up.
  Redistribution normalization(const Layout& produced) const;

  // Buffers: "shard" (input), "parameter" (output).
  Plan unshard_plan(Rank self, const Target& target = host_target()) const;
  // Buffers: "produced" (input), "gradient" (output).
  Plan normalize_plan(Rank self, const Layout& produced, const Target& target = host_target()) const;
  // Adds one micro-batch's gradient, without communication. Buffers: "gradient" (input); "accumulated"
  // (inout; of the first micro-batch output).
  Plan accumulate_plan(Rank self, bool first, const Target& target = host_target()) const;
  // Buffers: "gradient", "accumulated" or "scattered" (input) and "scattered" or "reduced" (output, or
  // inout).
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

// A parameter that lies whole on every rank of the mesh.
Layout replicated_layout(const Mesh& mesh, Shape shape, DType dtype);

// The layout `param` on its own mesh joined behind `data_parallel`, on whose axes it is replicated. Both
// meshes are slices of one mesh and hold `member`. Throws InvalidInput when they are not, or share an axis.
Layout unified_layout(const Mesh& data_parallel, const Layout& param, Rank member);

}  // namespace cp
