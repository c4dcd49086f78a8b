// NcclLaunches: the collectives of one prepared plan as calls of NCCL. Each launch is first written down as
// NcclCalls; those are what is issued, and what the observed records are made of.
//
// Order. NCCL wants collectives of communicators that share GPUs in one order on all of them, and a kernel
// that waits for its peers may keep another one from starting. The executor issues a rank's collectives in
// the plan's order, which check() proves to be without a wait cycle even if each waits for the one before it
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
#include <cstdint>
#include <deque>
#include <vector>

#include <nccl.h>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/nccl/nccl_calls.h"
#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_handles.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Whether NCCL keeps communicators in the order of their calls in this process.
bool nccl_keeps_launch_order();

// For the rank's thread.
class NcclLaunches {
 public:
  // The plan outlives the issuing, the others this. `ordered`: NCCL keeps the order.
  NcclLaunches(const Plan& plan, const CudaMemory& memory, std::vector<NcclCommunicator*> members,
               bool ordered);

  NcclCommunicator& member(GroupId group) { return *members_[static_cast<std::size_t>(group)]; }

  // Makes the stream wait as order demands; whether it does. To be called before the begin of a collective is
  // recorded, and done() after its end.
  bool await_turn(GroupId group, cudaStream_t stream);
  void done(GroupId group, cudaStream_t stream, cudaEvent_t end);
  // Nothing that was issued is under way.
  void forget_turns();

  // Waits until fewer than kMostUnderWay collectives of the group are under way. Returns false if the end
  // began before that.
  //
  // Why there is a limit: NCCL's proxy thread serves network transfers from a pool of 2,048 slots (NCCL
  // 2.28). A call that finds no free slot blocks and cannot be aborted, and if the proxy thread has ended
  // with an error it blocks forever. A ring takes two slots for each channel that leaves the node, so 64
  // collectives of 16 channels fit. An exchange takes two for each channel and peer over the network, so many
  // peers can still fill the pool.
  static constexpr std::size_t kMostUnderWay = 64;
  bool await_room(GroupId group, const NcclHandles& handles);

  // Issues the calls and returns the result of the last one, or that of the first one that failed.
  // `where.number` counts launches, so that those of two differ. ncclInProgress: the communicator is to be
  // asked when they are done, before anything else is enqueued.
  ncclResult_t issue(const Collective& collective, const NcclLaunch& where, cudaStream_t stream);

  // The records of all that was issued since the last call, in that order; with the sequence numbers up to
  // the communicators' next.
  std::vector<OpRecord> take_records();

 private:
  struct Turn {
    cudaEvent_t end = nullptr;
    cudaStream_t stream = nullptr;
  };
  bool takes_turns(GroupId group) const;
  ncclResult_t issue(const NcclCall& call, cudaStream_t stream) const;
  std::byte* address(const Address& address) const;

  const Plan& plan_;
  const Plan groups_;  // its rank and groups: records may be taken when it has gone
  const CudaMemory& memory_;
  std::vector<NcclCommunicator*> members_;
  const bool ordered_;
  Turn last_;  // of a collective with peers; where NCCL does not keep the order
  std::vector<std::deque<cudaEvent_t>> ends_;  // by group: of the latest kMostUnderWay collectives
  std::vector<NcclCall> calls_;                // that were issued
};

}  // namespace cp::runtime
