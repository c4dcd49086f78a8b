// NcclSteps: what an NcclDevice enqueues steps with, and what it keeps of those that are under way. It is the
// same whether steps are launched one by one (nccl_device.cc) or as a graph (graph_runs.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_handles.h"
#include "runtime/nccl/nccl_order.h"
#include "runtime/nccl/nccl_watchdog.h"
#include "runtime/nccl/plan_graphs.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// For the rank's thread.
struct NcclSteps {
  // A step whose times are unread, or a graph.
  struct Unread {
    const Step* step = nullptr;
    StreamId stream = 0;  // of the device
    std::shared_ptr<const PlanGraph> graph;
  };

  // These are the device's.
  const NcclOptions& options;
  NcclHandles& handles;
  NcclOrder& order;
  StepEvents& events;
  NcclWatchdog& watchdog;
  const std::vector<CudaStream>& streams;  // by the device's StreamId

  std::int64_t launches = 0;        // of collectives (NcclLaunch::number)
  std::int64_t untimed = 0;         // collectives that have shared or had a pair of begin_untimed()
  std::vector<Unread> unread = {};  // in the order of events.begin(); with traces alone

  cudaStream_t stream(StreamId stream) const { return streams[static_cast<std::size_t>(stream)].get(); }

  // Untimed pairs of events are used again: waits until the watchdog has done with the next one, for one or
  // more collectives that share it. Returns false if the end began before that.
  bool await_pair(std::int64_t collectives) {
    if (options.traces) return true;
    await_on_host(handles, [&] { return untimed + collectives - watchdog.ended() <= StepEvents::kPairs; });
    untimed += collectives;
    return !handles.is_ending();
  }
};

}  // namespace cp::runtime
