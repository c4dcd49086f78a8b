// NcclOrder: in which order the collectives of a device's plans may be issued, and how many at once.
//
// NCCL wants collectives of communicators that share GPUs in one order on all of them, and a kernel that
// waits for its peers may keep another one from starting. The executor issues a rank's collectives in the
// plan's order, which check() proves to be without a wait cycle even if each waits for the one before it
// (contract 5). On the GPU
//   - NCCL 2.26 and later put communicators of one GPU in the order of their calls, with
//     NCCL_LAUNCH_ORDER_IMPLICIT=1, and still let them overlap from CUDA 12.3 on: a kernel begins when the
//     one before it has begun. It is believed where the process was started with it, as cprun starts its
//     ranks.
//   - Without it, each collective waits for the one before it, where that is on another stream: one at a
//     time. Less would not do: groups that share one rank alone may be a cycle all the same (a double ring
//     is), and fill the GPUs in different orders.
// For the same reason no lazy loading of a kernel, allocation or connection inside of a launch can lock ranks
// against each other: whatever waits, waits for what was issued before.
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_handles.h"

namespace cp::runtime {

// Whether NCCL keeps communicators in the order of their calls in this process.
bool nccl_keeps_launch_order();

// For the rank's thread.
class NcclOrder {
 public:
  // `kept_by_nccl`: nccl_keeps_launch_order().
  explicit NcclOrder(bool kept_by_nccl) : kept_by_nccl_(kept_by_nccl) {}

  // Makes the stream wait as order demands; whether it does. To be called before the begin of a collective is
  // recorded, and done() after its end.
  bool await_turn(const NcclCommunicator& member, cudaStream_t stream);
  void done(NcclCommunicator& member, cudaStream_t stream, cudaEvent_t end);
  // Nothing that was issued is under way.
  void forget() { last_ = {}; }

  // Waits until fewer than kMostUnderWay collectives of the group are under way. Returns false if the end
  // began before that.
  //
  // Why there is a limit: NCCL's proxy thread serves network transfers from a pool of 2,048 slots (NCCL
  // 2.28). A call that finds no free slot blocks and cannot be aborted, and if the proxy thread has ended
  // with an error it blocks forever. A ring takes two slots for each channel that leaves the node, so 64
  // collectives of 16 channels fit. An exchange takes two for each channel and peer over the network, so many
  // peers can still fill the pool.
  static constexpr std::size_t kMostUnderWay = NcclCommunicator::kMostUnderWay;
  // With a `count` at most kMostUnderWay it waits until there is room for so many.
  static bool await_room(NcclCommunicator& member, const NcclHandles& handles, std::size_t count = 1);

  // Whether collectives of the group follow those of others.
  bool takes_turns(const NcclCommunicator& member) const {
    return !kept_by_nccl_ && member.group.ranks.size() > 1;
  }

 private:
  struct Turn {
    cudaEvent_t end = nullptr;
    cudaStream_t stream = nullptr;
  };
  const bool kept_by_nccl_;
  Turn last_;  // of a collective with peers; where NCCL does not keep the order
};

}  // namespace cp::runtime
