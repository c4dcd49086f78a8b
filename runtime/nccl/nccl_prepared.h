// NcclPrepared: a plan that an NcclDevice has made ready to run, and what its steps need on the GPU.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/begun_collectives.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/cuda/step_kernels.h"
#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_launch.h"
#include "runtime/nccl/nccl_watchdog.h"
#include "runtime/nccl/nccl_windows.h"
#include "runtime/nccl/plan_graphs.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

struct NcclPrepared {
  const Plan* plan = nullptr;
  LaneId lane = 0;
  std::vector<StreamId> streams;             // of the device, by the plan's StreamId
  std::vector<NcclCommunicatorPtr> members;  // by GroupId; they go after the memory (nccl_windows.h)
  std::chrono::milliseconds longest{0};      // planned time, of this rank and those of its groups
  std::unique_ptr<CudaMemory> memory;
  std::optional<StepKernels> kernels;
  std::optional<NcclLaunches> launches;
  std::vector<NcclCommunicators::Registered> registered;
  std::vector<NcclWindow> windows;         // by GroupId
  std::vector<Digest> digests;             // of collectives, by StepId
  std::atomic<std::int64_t> under_way{0};  // collectives that the watchdog has not seen to end
  std::optional<PlanGraphs> graphs;        // of a plan that is kept, if the options say so

  // Counts one more collective of the group, and of those under way. Returns it as the watchdog follows it.
  WatchedCollective begin(const Collective& collective, NcclCommunicator& member, StepId step,
                          StreamId stream, const StepEvents::Pair& pair);
};

}  // namespace cp::runtime
