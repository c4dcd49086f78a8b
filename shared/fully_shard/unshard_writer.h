// UnshardWriter: the parameters and gradients of a unit (a layer, the embedding, the head) inside a plan.
//
// Who shares a unit, in which dtypes, and whose gradients are added up, is what HsdpParam (hsdp_param.h) says
// of it: flat_unit(). What is more here is when: loops over layers, slots, padding instead of copies.
//
// A unit is a flat piece for each layer. Sharded (FSDP, ZeRO-3; Zhao et al. 2023), a rank keeps ceil(numel /
// ranks) elements of each piece: they are cast to `dtype` and gathered before a layer computes, and its
// gradients are reduced and scattered behind it. Two slots take turns, so that the next layer's are gathered
// meanwhile: the stream "fsdp" runs ahead by itself, and "fsdp_reduce", with a communicator of its own, does
// not hold it up. Resident, whole pieces stay (ZeRO-2; Rajbhandari et al. 2020); where gradients are, too,
// the products of the backward pass add to whole ones (ZeRO-1).
//
// Gradients may go to the host as soon as they are those of all ranks: behind a piece's backward pass, on the
// stream "to_host".
//
// Buffers, all pieces of a unit in one: parameters/<name> (shards in `shard_dtype`; resident: `dtype`),
// gradients/<name> in `gradient_dtype`, host/gradients/<name>, and temporaries unsharded/<name>....
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/fully_shard/hsdp_param.h"
#include "shared/fully_shard/stack.h"
#include "shared/plan/builder.h"

namespace cp {

struct ShardedUnit {
  std::string name;
  std::string group = "fsdp";  // of the gathers; "<group>_reduce" of the gradients
  std::int64_t numel = 0;      // of a piece
  std::int64_t pieces = 1;
  std::vector<Rank> ranks;     // that share a piece; one: it stays whole
  std::vector<Rank> replicas;  // that hold the same shard, and add up its gradients in the end
  DType dtype = DType::bf16;   // of what computes, and travels to it
  DType shard_dtype = DType::f32;
  DType gradient_dtype = DType::f32;
  // Whole pieces in buffers of these names, whoever gathers them: "unsharded" instead of "parameters" and
  // "gradients".
  bool resident = false;       // parameters
  bool resident_sums = false;  // gradients
  const char* resident_parameters = "parameters";
  const char* resident_gradients = "gradients";
  bool sends_gradients = false;  // to the host

  std::int64_t num_ranks() const { return static_cast<std::int64_t>(ranks.size()); }
  std::int64_t shard_numel() const { return ceil_div(numel, num_ranks()); }
  std::int64_t padded_numel() const { return shard_numel() * num_ranks(); }
  // Where whole parameters are gathered piece by piece, since their gradients were scattered so, each piece
  // has room for its padding.
  std::int64_t whole_stride() const { return resident && !has_whole_gradients() ? padded_numel() : numel; }
  // Of a buffer with all pieces whole, which ranks can share evenly.
  std::int64_t whole_numel() const { return align_up(pieces * whole_stride(), num_ranks()); }
  bool whole() const { return resident || ranks.size() == 1; }
  bool has_whole_gradients() const { return resident_sums || ranks.size() == 1; }
  // Whether the products of the backward pass are added to the gradients of the step themselves, unrounded.
  bool adds_gradients() const {
    return has_whole_gradients() && (gradient_dtype == dtype || gradient_dtype == DType::f32);
  }
};

// The unit of a parameter with one dimension, as rank `self` has it: one piece, without a name. Throws
// InvalidInput for a parameter that is split another way than in one axis' equal chunks, or whose gradients
// are averaged: steps scale their losses instead.
ShardedUnit flat_unit(const HsdpParam& param, Rank self);

// Where the backward pass writes the gradients of a piece: to elements that it writes first, or adds to.
struct GradientPlace {
  Window window;
  bool adds = false;
};

class UnshardWriter {
 public:
  UnshardWriter(PlanBuilder& builder, Rank self, ShardedUnit unit);

  // The parameters of a piece. `turn` counts the pieces that this pass has unsharded before.
  Window unshard(StackIndex piece, StackIndex turn);
  // Where the backward pass writes all gradients of a piece: in `dtype`, or in `gradient_dtype` where it adds
  // them.
  GradientPlace gradient(StackIndex piece, StackIndex turn);
  // Adds them to those of the step, where that is still to be done, and sends these to the host where that is
  // asked for.
  void reduce(StackIndex piece, StackIndex turn);

  const ShardedUnit& unit() const { return unit_; }

 private:
  bool casts_gradients() const { return unit_.dtype != unit_.gradient_dtype; }
  int slots() const { return unit_.pieces > 1 ? 2 : 1; }
  // The rank's block of a padded piece.
  std::int64_t own_block() const;
  BufferId once(BufferId& buffer, BufferKind kind, const std::string& name, DType dtype, std::int64_t numel);
  Window whole_gradients(StackIndex piece);
  void add_to_whole(StackIndex piece, const Window& gradient);
  void reduce_and_scatter(StackIndex piece, const Window& gradient);
  void send_to_host(StackIndex piece);

  PlanBuilder& builder_;
  ShardedUnit unit_;
  GroupId gather_group_ = -1, reduce_group_ = -1;
  std::int64_t index_ = 0;  // among the ranks
  BufferId parameters_ = -1, gradients_ = -1, slots_ = -1, gradient_slots_ = -1, cast_ = -1,
           host_gradients_ = -1;
};

}  // namespace cp
