// UnshardWriter writes the steps that bring the parameters of a unit (a layer, the embedding, the head) to
// where they compute, and take its gradients away.
//
// The rules are those of HsdpParam (hsdp_param.h): who shares a unit, in which dtypes, and whose gradients
// are added up; flat_unit() translates them. What this class adds is the timing: loops over layers, slots,
// and padding instead of copies.
//
// A unit is a flat piece of memory for each layer. It is kept in one of these ways:
//
//   sharded             A rank keeps ceil(numel / ranks) elements of each piece, or of each bucket of pieces.
//                       They are cast to `dtype` and gathered before a layer computes; its gradients are
//                       reduced and scattered behind it (ZeRO-3; FSDP, Zhao et al. 2023).
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
// Of a sharded unit, the first `replicated` elements of each piece may stay whole on every rank (tensors that
// are too small to be worth a gather: the threshold of fully_shard). They are cast to where the others are
// gathered to, and the sums of their gradients are all-reduced in the update. And `bucket` pieces, one behind
// the other, may be gathered and reduced at once, with one padding at their end, which the last bucket may
// have fewer of. Shards, slots and whole gradients hold bucket after bucket, and of each
//
//   shard   the replicated elements of its pieces, and the rank's part of all others
//   slot    the replicated elements of its pieces, all others, and padding
//
// so that of a piece the first elements lie apart from the others (Window::front) where there are several.
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
  // Of units whose parameters are sharded: elements at the beginning of each piece that are whole on each
  // rank, and how many pieces a bucket has.
  std::int64_t replicated = 0, bucket = 1;

  std::int64_t num_ranks() const { return static_cast<std::int64_t>(ranks.size()); }
  // Buckets, and the pieces of one; the last one may have fewer.
  std::int64_t num_buckets() const { return ceil_div(pieces, bucket); }
  std::int64_t pieces_of(std::int64_t of_bucket) const {
    return std::min(bucket, pieces - of_bucket * bucket);
  }
  // Of a bucket with `count` pieces: the part of a rank of what is sharded, and with padding all of these;
  // with the replicated elements what a rank owns, and what is in a slot.
  std::int64_t sharded_numel() const { return numel - replicated; }  // of a piece
  std::int64_t shard_numel(std::int64_t count = 1) const {
    return ceil_div(count * sharded_numel(), num_ranks());
  }
  std::int64_t padded_numel(std::int64_t count = 1) const { return shard_numel(count) * num_ranks(); }
  std::int64_t owned_numel(std::int64_t count = 1) const { return count * replicated + shard_numel(count); }
  std::int64_t slot_numel(std::int64_t count = 1) const { return count * replicated + padded_numel(count); }
  // In a slot, where an element of the bucket's piece number `position` lies.
  std::int64_t in_slot(std::int64_t count, std::int64_t position, std::int64_t element) const {
    return element < replicated ? position * replicated + element
                                : count * replicated + position * sharded_numel() + element - replicated;
  }
  // The sum of a size of buckets over all of them.
  template <class Size>
  std::int64_t of_all_buckets(const Size& size) const {
    const std::int64_t full = pieces / bucket, rest = pieces % bucket;
    return full * size(bucket) + (rest > 0 ? size(rest) : 0);
  }
  // Elements from one whole piece to the next. If whole parameters are gathered piece by piece, because their
  // gradients were scattered that way, each piece has room for its padding.
  std::int64_t whole_stride() const { return resident && !has_whole_gradients() ? padded_numel() : numel; }
  // Elements of a buffer with all pieces whole, rounded up so that the ranks can share it evenly.
  std::int64_t whole_numel() const { return align_up(pieces * whole_stride(), num_ranks()); }
  // Whether all pieces are one for those who share them: a rank has a stretch of them, one behind the other.
  // Else it has a part of each bucket.
  bool shares_all_pieces() const { return resident && resident_sums && ranks.size() > 1; }
  // Elements that a rank owns: of its f32 parameters, of reduced gradients, and of each state.
  std::int64_t num_owned() const {
    return shares_all_pieces() ? whole_numel() / num_ranks()
                               : of_all_buckets([&](std::int64_t count) { return owned_numel(count); });
  }
  // Elements of whole gradients, and where an element of a piece lies in them.
  std::int64_t whole_gradients_numel() const {
    return resident ? whole_numel() : of_all_buckets([&](std::int64_t count) { return slot_numel(count); });
  }
  std::int64_t in_whole_gradients(std::int64_t piece, std::int64_t element) const {
    if (resident) return piece * numel + element;
    const std::int64_t of_bucket = piece / bucket;
    return of_bucket * slot_numel(bucket) + in_slot(pieces_of(of_bucket), piece % bucket, element);
  }
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

  // The whole parameters of a piece; writes the steps that gather them, with those of all of its bucket where
  // it is the first of it that the pass visits. `turn` counts the pieces that this pass has unsharded before,
  // and so chooses the slot. Of a bucket's pieces all are visited in their order, and backward in the
  // opposite one; in a Repeat whole buckets.
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
  int slots_of(int most) const { return static_cast<int>(std::min<std::int64_t>(most, unit_.num_buckets())); }
  // Where a piece is: in which bucket, which has `count` pieces; and what to count turns by.
  struct Place {
    StackIndex bucket;
    std::int64_t count = 1, position = 0;
    StackIndex turn;
  };
  Place place_of(StackIndex piece, StackIndex turn, bool backward) const;
  // The piece in the slot of its bucket.
  Window piece_of(const Window& slot, const Place& place) const;
  // Where this rank's part begins in a slot.
  std::int64_t own_block(std::int64_t count) const;
  // The parts of all buckets, in one buffer.
  Window owned(BufferId buffer, const Place& place) const;
  void gather(const Place& place, const Window& slot);
  void gather_kept(const Place& place, const Window& slot);
  void place_replicated(const Place& place, const Window& slot);
  BufferId shards();
  BufferId once(BufferId& buffer, BufferKind kind, const std::string& name, DType dtype, std::int64_t numel);
  // Whether this rank keeps a part of a gathered piece, or all of it; and where it is.
  bool keeps() const { return !unit_.whole() && unit_.kept_over > 0; }
  Window kept(const Place& place);
  Window slot(const Place& place);
  Window gradient_slot(const Place& place);
  Window whole_gradients(StackIndex piece);
  void add_to_whole(StackIndex piece, const Window& gradient);
  void reduce_and_scatter(const Place& place);
  void send_to_host(StackIndex piece);

  PlanBuilder& builder_;
  ShardedUnit unit_;
  GroupId gather_group_ = -1, kept_group_ = -1, reduce_group_ = -1;
  std::int64_t index_ = 0;  // of this rank among unit_.ranks
  BufferId parameters_ = -1, gradients_ = -1, slots_ = -1, kept_ = -1, gradients_made_ = -1, cast_ = -1,
           host_gradients_ = -1;
};

}  // namespace cp
