// NcclLaunches issues the collectives of one prepared plan as calls of NCCL. Each launch is first written
// down as NcclCalls. Exactly these are issued, and the observed records are made of them.
//
// The order of collectives. If communicators share GPUs, NCCL demands that all of these GPUs run their
// collectives in the same order; otherwise a kernel that waits for its peers may keep another one from
// starting. The executor issues a rank's collectives in the plan's order. check() proves that this order has
// no wait cycle even if each collective waits for the one before it (contract 5 of docs/architecture.md). On
// the GPU this order is kept in one of two ways:
//   - With NCCL_LAUNCH_ORDER_IMPLICIT=1, NCCL 2.26.2 and later put the communicators of a GPU in the order of
//     their calls. From CUDA 12.3 on they still overlap: a kernel begins when the one before it has begun.
//     This way is taken if the process was started with the variable, as cprun starts its ranks.
//   - Without it each collective waits until the one before it has ended, if that is on another stream. So
//     they run one at a time. Less would not be enough: even groups that share only one rank may form a cycle
//     (those of a double ring do), and fill the GPUs in different orders.
// For the same reason ranks cannot lock each other up by what may happen inside a launch (a kernel is loaded,
// memory allocated, a connection made): whatever waits, waits for what was issued before.
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

// Whether NCCL, in this process, keeps the collectives of communicators in the order of their calls.
bool nccl_keeps_launch_order();

// All functions are for the rank's thread. They throw CUDA's errors as CP_CUDA does.
class NcclLaunches {
 public:
  // `plan` must live until the last issue(), and `memory` and `members` (by GroupId) as long as this object.
  // `ordered` is nccl_keeps_launch_order().
  NcclLaunches(const Plan& plan, const CudaMemory& memory, std::vector<NcclCommunicator*> members,
               bool ordered);

  NcclCommunicator& member(GroupId group) { return *members_[static_cast<std::size_t>(group)]; }

  // Makes the stream wait as the order demands, and returns whether it has to. Call it before the event of a
  // collective's begin is recorded, and done() after the event `end` is.
  bool await_turn(GroupId group, cudaStream_t stream);
  void done(GroupId group, cudaStream_t stream, cudaEvent_t end);
  // To be called when nothing that was issued is under way any more.
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

  // Issues the calls of one launch, and returns the result of the last call, or of the first one that failed.
  // `where.number` must differ from launch to launch. After ncclInProgress the caller must wait until the
  // communicator is done (NcclCommunicators::await), before it enqueues anything else.
  ncclResult_t issue(const Collective& collective, const NcclLaunch& where, cudaStream_t stream);

  // Returns the records of all that was issued since the last call, in this order. Their sequence numbers end
  // just before the communicators' next ones. The plan need not exist any more.
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
  const Plan groups_;  // has only the plan's rank and groups, for take_records()
  const CudaMemory& memory_;
  std::vector<NcclCommunicator*> members_;
  const bool ordered_;
  Turn last_;  // the last collective with peers, if NCCL does not keep the order
  std::vector<std::deque<cudaEvent_t>> ends_;  // by group: of the latest kMostUnderWay collectives
  std::vector<NcclCall> calls_;                // issued since the last take_records()
};

}  // namespace cp::runtime
