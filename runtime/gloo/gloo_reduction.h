// A GlooReduction runs the collectives that reduce, over one Gloo context. They are made of transfers between
// each two members.
//
// The values are cut into parts, one for each member. Every member receives its part from all others, piece
// by piece, and reduces the pieces in the order of the group. In an all_reduce it sends each piece of results
// to all others as soon as it is done.
//
// This way moves as many bytes as a ring does. It gives the same bits as the simulated fabric, since reduce()
// of host_kernels.h gets the values of all members at once, and so rounds 16-bit values only once. It needs
// memory for two pieces from each other member: one piece arrives while the other is reduced.
//
// Except for reserve(), all of it is for one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "shared/base/dtype.h"

namespace cp::runtime {

// The largest amount of memory that the reductions of a group keep beside the plan's, whatever the sizes of
// the values and of the group. Chosen: with it a group of up to 5 members has pieces of the largest size
// (kMostPieceBytes, 2 x 4 x 512 KiB), and a process with many groups still keeps only a few MiB for each.
inline constexpr std::int64_t kMostStagingBytes = std::int64_t{4} << 20;

// The number of bytes that each member sends to another at a time, in a group of `size` members. It is a
// multiple of 64, so that it is one of the sizes of all dtypes.
std::int64_t reduced_piece_bytes(std::int64_t size);

class GlooReduction {
 public:
  // Called for each transfer when it is posted: its direction, the peer's index, and the number of elements.
  using OnTransfer = std::function<void(bool sends, std::int32_t peer, std::int64_t count)>;

  // `index` is that of this rank in the group of `size` members, which the context connects.
  GlooReduction(std::shared_ptr<gloo::Context> context, std::int32_t index, std::int32_t size);

  // Allocates memory for collectives in which a member reduces parts of at most `part_bytes` bytes, unless
  // there is enough already. The collectives below need it, and allocate nothing that grows with the values.
  // Call it only while no collective is under way.
  void reserve(std::int64_t part_bytes);
  std::int64_t staging_bytes() const { return 2 * (size_ - 1) * room_bytes_; }

  // The size in bytes of the largest part of an all_reduce of `count` elements.
  std::int64_t part_bytes(DType dtype, std::int64_t count) const;

  // Both collectives block, and throw gloo::Exception. `slot` must be even: transfers of values to be reduced
  // use it, and those of results use slot + 1.
  //
  // `in` has `size` blocks of `count` elements. `out` has one block, which may be the block `index` of `in`.
  void reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count,
                      std::uint64_t slot, const OnTransfer& on_transfer);
  // `in` and `out` have `count` elements each, and may be the same. Returns how many results this member now
  // has: those that it made, and those that others sent to it. If all is well that is `count`.
  std::int64_t all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count,
                          std::uint64_t slot);

 private:
  struct Call;
  using UnboundBuffer = gloo::transport::UnboundBuffer;

  std::unique_ptr<UnboundBuffer> unbound(std::byte* data, std::int64_t size_bytes) const;
  // The number of the room (space for one piece) in which another member's pieces arrive.
  std::int32_t room_of(std::int32_t member) const { return member < index_ ? member : member - 1; }
  void run(Call& call);
  void post(Call& call, std::int64_t piece);
  void finish(Call& call, std::int64_t piece);

  std::shared_ptr<gloo::Context> context_;
  std::int32_t index_, size_;
  std::int64_t room_bytes_ = 0;  // of one piece of one member
  // Two halves, for pieces of even and of odd number. Each has a room for each other member.
  std::unique_ptr<std::byte[]> staging_;
  std::array<std::unique_ptr<UnboundBuffer>, 2> arriving_;
  std::vector<const std::byte*> addends_;  // by member
};

}  // namespace cp::runtime
