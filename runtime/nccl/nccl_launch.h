// NcclLaunches issues the collectives of one prepared plan as calls of NCCL. Each launch is first written
// down as NcclCalls. Exactly these are issued, and the observed records are made of them. nccl_order.h says
// when a collective may be issued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <nccl.h>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/nccl/nccl_calls.h"
#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_windows.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// The record of a collective, with the number of its launch (NcclLaunch::number).
struct NcclRecord {
  std::int64_t launch = 0;
  OpRecord record;
};

// All functions are for the rank's thread. They throw CUDA's errors as CP_CUDA does.
class NcclLaunches {
 public:
  // `plan` must live until the last issue(), and `memory`, `members` and `windows` (both by GroupId) as long
  // as this object. `keeps_calls` says whether take_records() will ask for what was issued.
  NcclLaunches(const Plan& plan, const CudaMemory& memory, std::vector<NcclCommunicatorPtr> members,
               const std::vector<NcclWindow>& windows, bool keeps_calls);

  NcclCommunicator& member(GroupId group) { return *members_[static_cast<std::size_t>(group)]; }

  // Issues the calls of one launch, and returns the result of the last call, or of the first one that failed.
  // `where.number` must differ from launch to launch, and `sequence` is the collective's number on its
  // communicator. After ncclInProgress the caller must wait until the communicator is done
  // (NcclCommunicators::await), before it enqueues anything else.
  ncclResult_t issue(const Collective& collective, const NcclLaunch& where, std::int64_t sequence,
                     cudaStream_t stream);

  // The same while the stream is captured (cuda_graphs.h): the calls become part of a graph, and are appended
  // to `calls`. They are no launch yet.
  ncclResult_t capture(const Collective& collective, const NcclLaunch& where, cudaStream_t stream,
                       std::vector<NcclCall>& calls);
  // A graph with these calls of one collective in it is launched.
  void replayed(std::span<const NcclCall> calls, std::int64_t number, std::int64_t sequence);

  // Returns the records of all that was issued since the last call, in this order; none unless calls are
  // kept. The plan need not exist any more.
  std::vector<NcclRecord> take_records();

 private:
  ncclResult_t issue_from(const std::vector<NcclCall>& calls, std::size_t first, cudaStream_t stream) const;
  ncclResult_t issue(const NcclCall& call, cudaStream_t stream) const;
  // Calls of wait_signal alone, as one of NCCL.
  ncclResult_t await_signals(std::span<const NcclCall> waits, cudaStream_t stream) const;
  std::byte* address(const Address& address) const;

  const Plan& plan_;
  const Plan groups_;  // has only the plan's rank and groups, for take_records()
  const CudaMemory& memory_;
  std::vector<NcclCommunicatorPtr> members_;
  [[maybe_unused]] const std::vector<NcclWindow>& windows_;  // of puts alone
  const bool keeps_calls_;
  std::vector<NcclCall> calls_;  // issued since the last take_records()
  // Of the collectives that these calls are.
  struct Issued {
    std::int64_t launch = 0, sequence = 0;
  };
  std::vector<Issued> issued_;
};

}  // namespace cp::runtime
