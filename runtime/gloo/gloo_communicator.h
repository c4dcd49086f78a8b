// A GlooCommunicator runs the collectives of one group over one Gloo context. Only one thread at a time may
// use it, except for abort().
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
  // `index` is the rank's place in the group, whose members the context connects. `passed` is where the
  // context notes the checksums of payloads; it may be null only if checksums are off.
  GlooCommunicator(Group group, std::int32_t index, std::shared_ptr<gloo::Context> context,
                   Checksums checksums, std::shared_ptr<PassedPayloads> passed);

  const Group& group() const { return group_; }
  std::int32_t index() const { return index_; }

  // Allocates what the collective needs beside the plan's memory. Only collectives that reduce need any: at
  // most kMostStagingBytes for all of them together. The communicator owns and keeps this memory. Call it
  // before run(), on any thread, while no collective runs.
  void reserve(const Plan& plan, const Collective& collective);

  // Runs the collective, and returns the record of what the calls of the library amounted to. The caller sets
  // the record's sequence number and stream. The function blocks. `sequence` serves only for the messages of
  // errors.
  //
  // `digest` is that of all collectives on the group up to this one (BegunCollectives). Part of it is in the
  // tags of all transfers. So members that do not run the same collective exchange nothing: they wait, and
  // never compute with numbers that were meant for something else.
  //
  // Throws gloo::Exception if a connection breaks or a wait takes too long, and PayloadSizeError if a message
  // has another size than expected. With Checksums::each the members also tell each other, over the same
  // connections, the checksums of what they sent; the function throws TransferFault if something else arrived
  // here.
  OpRecord run(const Collective& collective, const HostMemory& memory, std::int64_t iteration,
               std::int64_t sequence, const Digest& digest);

  // Makes a blocked run() throw. Any thread may call it. Afterwards neither this communicator nor those of
  // its peers in the group are of any use.
  void abort();

 private:
  // What is sent to or received from one peer.
  struct Block {
    std::int32_t peer = -1;  // index in the group
    std::byte* data = nullptr;
    std::int64_t count = 0;  // elements
    DType dtype = DType::f32;
  };
  // The first slot of the collective under way. Its transfers use this one and the next 2^24 - 1.
  std::uint64_t slot() const;
  std::int32_t size() const { return static_cast<std::int32_t>(group_.ranks.size()); }

  void all_gather(DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void all_to_all(DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  void broadcast(std::int32_t root, DType dtype, std::byte* in, std::byte* out, std::int64_t count);
  // Sends the block in(peer) of `count` elements to each member, and receives one from each; the own block is
  // copied. The received blocks lie in `out` in the order of the group.
  void transfer_blocks(DType dtype, std::int64_t count,
                       const std::function<std::byte*(std::int32_t peer)>& in, std::byte* out);

  // Both run all sends and receives at once. If there are several with one peer, they match in the order in
  // which they are given. exchange() also notes the calls.
  void exchange(const std::vector<Block>& sends, const std::vector<Block>& recvs);
  void transfer(const std::vector<Block>& sends, const std::vector<Block>& recvs);

  // Returns the checksums of the payloads that have passed since the last call, and forgets them.
  PayloadChecksums take_checksums(const Collective& collective);
  void next_tag(const Digest& digest);
  // Tells all members the checksums of `record` and throws TransferFault if theirs do not fit.
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
