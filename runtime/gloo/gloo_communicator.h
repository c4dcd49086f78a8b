// GlooCommunicator: one group's collectives over one Gloo context, for one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "runtime/gloo/gloo_call.h"
#include "runtime/gloo/gloo_reduction.h"
#include "runtime/gloo/sealed_context.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"
#include "shared/plan/transfer_check.h"

namespace cp::runtime {

class GlooCommunicator {
 public:
  // `index`: the rank's place in the group, whose members the context connects. `passed`: what the context
  // notes of payloads, set unless checksums are off.
  GlooCommunicator(Group group, std::int32_t index, std::shared_ptr<gloo::Context> context,
                   Checksums checksums, std::shared_ptr<PassedPayloads> passed);

  const Group& group() const { return group_; }
  std::int32_t index() const { return index_; }

  // Makes what the collective needs beside the plan's memory: where it reduces, at most kMostStagingBytes for
  // all collectives together, which stay with the communicator. Before run(), on any thread while none runs.
  void reserve(const Plan& plan, const Collective& collective);

  // Runs the collective and returns what the calls of the library amounted to; its sequence number and stream
  // are the caller's to set. Blocks; throws gloo::Exception, and where checksums are compared at each
  // collective the TransferFault of what arrived here; `sequence` is for its message. Members then tell each
  // other, in transfers of the same connections, what they sent. `digest`: of all collectives on the group up
  // to this one (BegunCollectives). It is in the tags of all transfers, so that members that do not do the
  // same exchange nothing: they wait, and never compute with numbers that were meant for something else.
  OpRecord run(const Collective& collective, const HostMemory& memory, std::int64_t iteration,
               std::int64_t sequence, const Digest& digest);

  // Makes a blocked run() throw; for any thread. The communicator is of no use afterwards, here and at its
  // peers.
  void abort();

 private:
  struct Block {
    std::int32_t peer = -1;
    std::byte* data = nullptr;
    std::int64_t count = 0;
    DType dtype = DType::f32;
  };
  std::uint64_t slot() const;  // the first of those that are the transfers' of the collective under way
  std::int32_t size() const { return static_cast<std::int32_t>(group_.ranks.size()); }

  void all_gather(DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void all_to_all(DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void broadcast(std::int32_t root, DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  // A block of `count` elements to and from each member, the own one too; those that are received lie in
  // `out` in the group's order.
  void transfer_blocks(DType dtype, std::int64_t count,
                       const std::function<std::byte*(std::int32_t peer)>& in, std::byte* out);
  // All sends and receives at once; several with one peer match in order. exchange() makes a note of the
  // calls.
  void exchange(const std::vector<Block>& sends, const std::vector<Block>& recvs);
  void transfer(const std::vector<Block>& sends, const std::vector<Block>& recvs);

  PayloadChecksums take_checksums(const Collective& collective);
  void next_tag(const Digest& digest);
  void compare_at_once(const OpRecord& record, std::int64_t sequence);

  Group group_;
  std::int32_t index_;
  Checksums mode_;
  std::shared_ptr<gloo::Context> context_;
  std::shared_ptr<PassedPayloads> passed_;
  GlooReduction reduction_;
  std::uint32_t tag_ = 0;        // of the collective under way
  std::vector<GlooCall> calls_;  // of the collective under way
};

}  // namespace cp::runtime
