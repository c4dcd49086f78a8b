// UnshardWriter writes the steps that bring the parameters of a unit (a layer, the embedding, the head) to
// where they compute, and take its gradients away.
//
// The rules are those of HsdpParam (hsdp_param.h): who shares a unit, in which dtypes, and whose gradients
// are added up; flat_unit() translates them. What this class adds is the timing: loops over layers, slots,
// and padding instead of copies.
//
// A unit is a flat piece of memory for each layer. It is kept in one of these ways:
//
//   sharded             A rank keeps ceil(numel / ranks) elements of each piece. They are cast to `dtype` and
//                       gathered before a layer computes; its gradients are reduced and scattered behind it
//                       (ZeRO-3; FSDP, Zhao et al. 2023).
//   resident            Whole parameters stay; gradients are still scattered (ZeRO-2; Rajbhandari et al.
//                       2020).
//   and resident_sums   Whole gradients stay, too, and the products of the backward pass add to them
//                       (ZeRO-1).
//
// Gradients of sharded parameters may stay whole, too: resident_sums alone. They are added up without
// communication, piece by piece with the padding of shards, until whoever has the unit reduces them
// (no_sync).
//
// What a forward pass has gathered is given up behind its layer, unless the unit keeps it for the backward
// pass: over `kept_over` neighbours among the ranks each keeps its part of the whole piece, from which
// unshard_again() gathers; over one, all of it (reshard_after_forward of fully_shard: a smaller mesh, or
// false).
//
// Slots take turns, two of them if `prefetch` does not say otherwise, so that the next layer's parameters are
// gathered while this layer computes: the stream "fsdp" runs ahead by itself, as far as there are slots. Of
// one slot a gather waits until the layer before is done. Reductions have a stream "fsdp_reduce" and a
// communicator of their own, so that they do not hold up the gathers.
//
// Gradients can go to the host as soon as they are sums over all ranks: behind the backward pass of a piece,
// on the stream "to_host".
//
// Buffers hold all pieces of a unit: parameters/<name> (shards in `shard_dtype`; resident: whole, in
// `dtype`), gradients/<name> in `gradient_dtype`, host/gradients/<name>, and temporaries whose names begin
// with unsharded/<name>.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/fully_shard/hsdp_param.h"
#include "shared/fully_shard/stack.h"
#include "shared/plan/builder.h"

namespace cp {

struct ShardedUnit {
  std::string name;
  std::string group = "fsdp";  // name of the group that gathers; "<group>_reduce" reduces gradients
  std::int64_t numel = 0;      // elements of one piece
  std::int64_t pieces = 1;
  std::vector<Rank> ranks;     // that share a piece; if it is one rank, the piece stays whole
  std::vector<Rank> replicas;  // that hold the same shard; their gradients are added up in the update
  DType dtype = DType::bf16;   // in which parameters are gathered and computed with
  DType shard_dtype = DType::f32;
  DType gradient_dtype = DType::f32;
  // If set, whole pieces stay in buffers with the names below, instead of shards in "parameters/" and
  // "gradients/". This class does not gather them then.
  bool resident = false;       // parameters
  bool resident_sums = false;  // gradients
  const char* resident_parameters = "parameters";
  const char* resident_gradients = "gradients";
  bool sends_gradients = false;  // gradients go to the host
  // Over how many of `ranks`, which it divides, gathered pieces stay split behind the forward pass; 0: they
  // are given up.
  std::int64_t kept_over = 0;
  // How many pieces ahead of the one at work are gathered: there is a slot more than that.
  int prefetch = 1;

  std::int64_t num_ranks() const { return static_cast<std::int64_t>(ranks.size()); }
  std::int64_t shard_numel() const { return ceil_div(numel, num_ranks()); }
  std::int64_t padded_numel() const { return shard_numel() * num_ranks(); }
  // Elements from one whole piece to the next. If whole parameters are gathered piece by piece, because their
  // gradients were scattered that way, each piece has room for its padding.
  std::int64_t whole_stride() const { return resident && !has_whole_gradients() ? padded_numel() : numel; }
  // Elements of a buffer with all pieces whole, rounded up so that the ranks can share it evenly.
  std::int64_t whole_numel() const { return align_up(pieces * whole_stride(), num_ranks()); }
  // Whether all pieces are one for those who share them: a rank has a stretch of them, one behind the other.
  // Else it has a shard of each piece.
  bool shares_all_pieces() const { return resident && resident_sums && ranks.size() > 1; }
  // Elements from one whole piece's gradients to the next, and of all of them.
  std::int64_t gradient_stride() const { return resident ? numel : padded_numel(); }
  std::int64_t whole_gradients_numel() const { return resident ? whole_numel() : pieces * padded_numel(); }
  bool whole() const { return resident || ranks.size() == 1; }
  bool has_whole_gradients() const { return resident_sums || ranks.size() == 1; }
  // Whether the backward pass adds its products to the gradients of the step directly, without rounding them
  // first.
  bool adds_gradients() const {
    return has_whole_gradients() && (gradient_dtype == dtype || gradient_dtype == DType::f32);
  }
};

// The unit of a one-dimensional parameter as rank `self` has it: one piece, without a name. Throws
// InvalidInput if the parameter is split in any other way than in equal chunks along one axis, or if its
// gradients are averaged: steps scale their losses instead.
ShardedUnit flat_unit(const HsdpParam& param, Rank self);

// Where the backward pass puts the gradients of a piece: it overwrites these elements, or adds to them if
// `adds`.
struct GradientPlace {
  Window window;
  bool adds = false;
};

class UnshardWriter {
 public:
  UnshardWriter(PlanBuilder& builder, Rank self, ShardedUnit unit);

  // The whole parameters of a piece; writes the steps that gather them. `turn` counts the pieces that this
  // pass has unsharded before, and so chooses the slot.
  Window unshard(StackIndex piece, StackIndex turn);
  // The same for the backward pass of a piece that the forward pass has unsharded: gathers what is not kept.
  Window unshard_again(StackIndex piece, StackIndex turn);
  // Where the backward pass writes the gradients of a piece: in `dtype`, or in `gradient_dtype` if it adds
  // them.
  GradientPlace gradient(StackIndex piece, StackIndex turn);
  // Behind the backward pass of a piece: adds its gradients to those of the step, unless the products have
  // done so, and sends them to the host if the unit asks for it, and if no `more` of them come in this pass.
  void reduce(StackIndex piece, StackIndex turn, bool more = false);

  // Behind it, what is gathered and reduced has temporaries of its own, and turns begin anew. For a unit that
  // is used again much later: in between nothing of its whole pieces lives.
  void begin_use() { slots_ = gradients_made_ = cast_ = -1; }

  const ShardedUnit& unit() const { return unit_; }

 private:
  bool casts_gradients() const { return unit_.dtype != unit_.gradient_dtype; }
  int gather_slots() const { return slots_of(unit_.prefetch + 1); }
  int gradient_slots() const { return slots_of(2); }
  int slots_of(int most) const { return static_cast<int>(std::min<std::int64_t>(most, unit_.pieces)); }
  // Where this rank's block begins in a padded piece.
  std::int64_t own_block() const;
  BufferId once(BufferId& buffer, BufferKind kind, const std::string& name, DType dtype, std::int64_t numel);
  // Whether this rank keeps a part of a gathered piece, or all of it; and where it is.
  bool keeps() const { return !unit_.whole() && unit_.kept_over > 0; }
  Window kept(StackIndex piece);
  Window slot(StackIndex turn);
  Window whole_gradients(StackIndex piece);
  void add_to_whole(StackIndex piece, const Window& gradient);
  void reduce_and_scatter(StackIndex piece, const Window& gradient);
  void send_to_host(StackIndex piece);

  PlanBuilder& builder_;
  ShardedUnit unit_;
  GroupId gather_group_ = -1, kept_group_ = -1, reduce_group_ = -1;
  std::int64_t index_ = 0;  // of this rank among unit_.ranks
  BufferId parameters_ = -1, gradients_ = -1, slots_ = -1, kept_ = -1, gradients_made_ = -1, cast_ = -1,
           host_gradients_ = -1;
};

}  // namespace cp
