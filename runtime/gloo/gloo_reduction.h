// GlooReduction: the collectives that reduce, over one Gloo context, made of transfers between each two
// members.
//
// The values are cut into parts, one for each member. Every member gets its part from all others piece by
// piece, adds the pieces up in the order of the group, and where all want the result passes each piece on as
// soon as it is done. That moves as many bytes as a ring does, gives the bits of the simulated fabric
// (reduce() of host_kernels.h over all members at once: 16-bit values are rounded once), and needs no more
// memory than two pieces from each other member: one that arrives while the other is added up.
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

// The most memory that the reductions of a group keep beside the plan's, whatever the sizes of the values and
// of the group.
inline constexpr std::int64_t kMostStagingBytes = std::int64_t{4} << 20;

// How much each member sends to another at a time, in a group of so many.
std::int64_t reduced_piece_bytes(std::int64_t size);

class GlooReduction {
 public:
  // Told of each transfer when it is posted.
  using OnTransfer = std::function<void(bool sends, std::int32_t peer, std::int64_t count)>;

  // `index`: of this rank in the group of `size` members, which the context connects.
  GlooReduction(std::shared_ptr<gloo::Context> context, std::int32_t index, std::int32_t size);

  // Makes room for collectives in which a member reduces parts of `part_bytes`. What there is stays where it
  // suffices; the collectives below allocate nothing and need what was reserved. No collective is under way.
  void reserve(std::int64_t part_bytes);
  std::int64_t staging_bytes() const { return 2 * (size_ - 1) * room_bytes_; }

  // The bytes of the largest part of an all_reduce.
  std::int64_t part_bytes(DType dtype, std::int64_t count) const;

  // Both block, and throw gloo::Exception. `slot`, which is even, is that of addends; the next is that of
  // results.
  //
  // `in`: `size` blocks of `count` elements; `out`: one, which may be the block `index` of `in`.
  void reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count,
                      std::uint64_t slot, const OnTransfer& on_transfer);
  // `in` and `out`: `count` elements, which may be the same. Returns how many results came to be here: those
  // that this member made, and those that it was sent.
  std::int64_t all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count,
                          std::uint64_t slot);

 private:
  struct Call;
  using UnboundBuffer = gloo::transport::UnboundBuffer;

  std::unique_ptr<UnboundBuffer> unbound(std::byte* data, std::int64_t size_bytes) const;
  // Where another member's pieces arrive, among the rooms.
  std::int32_t room_of(std::int32_t member) const { return member < index_ ? member : member - 1; }
  void run(Call& call);
  void post(Call& call, std::int64_t piece);
  void finish(Call& call, std::int64_t piece);

  std::shared_ptr<gloo::Context> context_;
  std::int32_t index_, size_;
  std::int64_t room_bytes_ = 0;  // of one piece of one member
  std::unique_ptr<std::byte[]>
      staging_;  // a room for each other member, twice: for pieces of even and of odd number
  std::array<std::unique_ptr<UnboundBuffer>, 2> arriving_;
  std::vector<const std::byte*> addends_;  // by member
};

}  // namespace cp::runtime
