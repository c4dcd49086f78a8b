// GraphRuns: runs of an NcclDevice's kept plans as CUDA graphs (NcclOptions::graphs). A run is captured, or
// replayed, or neither: plan_graphs.h says which. The device tells of each run and asks of each of its steps
// whether the graph has it; if not, the device launches it.
//
// Ownership. The graphs themselves belong to CudaGraphs, where any thread may drop them, so that
// communicators can end: a replay then launches nothing. What a graph has in it (PlanGraph) is held by the
// plan's PlanGraphs, by the run under way, and by replays whose times are unread. A plan must stay from
// begin() to leave().
//
// Ordering. While a run is captured, nothing of it runs; while it is replayed, nothing of it is enqueued.
// end() launches the graph, on the plan's first stream: to the watchdog and to other collectives, all of its
// collectives begin and end with it. So all streams of a run must have joined the first one when it ends, and
// only the first one is in order with a replay. Steps outside of runs ("loose" ones, in lane 0) may be on any
// stream: each such stream waits for the replay before it, and a run that has a graph for all of them.
//
// Errors. If CUDA or NCCL cannot capture something (InvalidInput), this is no error: the plan is refused,
// GraphUse says why, and end() launches the steps of the run one by one, as they were asked for. All else is
// thrown, as CUDA's and NCCL's errors are; the caller must end the communicators then, since a run may be
// enqueued in part, and call leave().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nccl.h>

#include "runtime/cuda/cuda_graphs.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_prepared.h"
#include "runtime/nccl/nccl_steps.h"
#include "runtime/nccl/plan_graphs.h"
#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Throws InvalidInput if the caller's stream is being captured: a run would become part of that capture,
// where nobody can follow its collectives.
void refuse_captured(CallerStream caller);

// For the rank's thread. StreamIds are the device's.
class GraphRuns {
 public:
  using LaunchStep = std::function<void(const StepRef& ref, std::int64_t iteration, StreamId stream)>;

  // What is referred to must outlive this object. `launch_step` launches a step of the run's plan at once.
  GraphRuns(CudaGraphs& graphs, NcclSteps& steps, LaunchStep launch_step);

  // Lets runs of the plan become graphs, if they may.
  void allow(NcclPrepared& prepared);

  // ---- a run
  // Its first stream is in order behind what the run waits for.
  void begin(NcclPrepared& prepared, StreamId first);
  // For every step, in a run or outside of it. `prepared` is the plan in use. Returns whether the step is the
  // graph's.
  bool takes(NcclPrepared& prepared, const StepRef& ref, std::int64_t iteration, StreamId stream);
  // As Device::record and Device::wait. They return nothing, and false, if it is not the graph's business.
  std::optional<EventId> record(StreamId stream);
  bool wait(StreamId stream, EventId event);
  // Launches what the run is. `end` is the last event of the run, on its first stream.
  void end(EventId end);
  // The run is over, whatever became of it.
  void leave();

  // Nothing is under way, in no run.
  void forget();

  const GraphUse& use() const { return use_; }

 private:
  struct Captured {
    // What the executor asked for, for the case that it turns out not to fit into a graph.
    struct Call {
      StepRef ref;  // without a step: `event` is recorded, or waited for
      std::int64_t iteration = 0;
      StreamId stream = 0;  // of the device
      EventId event = -1;
      bool waits = false;
    };
    std::optional<GraphCapture> capture;
    std::shared_ptr<PlanGraph> graph;
    std::vector<Call> calls;
    std::string why_not;  // the first reason
    // The end of the latest collective that takes turns.
    EventId turn = -1;
  };

  void refuse(NcclPrepared& prepared, const std::string& why);

  void begin_loose(const NcclPrepared& prepared, StreamId stream);
  void join_loose(StreamId first);

  template <class F>
  void capturing(const F& f);
  void capture(const StepRef& ref, std::int64_t iteration, StreamId stream);
  ncclResult_t capture_collective(const StepRef& ref, const Collective& collective, std::int64_t iteration,
                                  StreamId stream);
  void end_capture();

  bool await_room(const PlanGraph& graph);
  void replay(EventId end);
  void begin_replayed(const GraphCollective& one, const PlanGraph& graph, const StepEvents::Pair& pair);

  CudaGraphs& graphs_;
  NcclSteps& steps_;
  StepEvents& events_;  // those of steps_
  const LaunchStep launch_step_;

  // Of the run under way: at most one of the last two is not null.
  NcclPrepared* run_ = nullptr;
  StreamId first_ = 0;
  EventId end_of_replay_ = -1;
  std::unique_ptr<Captured> captured_;
  std::shared_ptr<PlanGraph> replayed_;
  // Between runs.
  std::vector<bool> has_loose_;      // by stream: since the last graph of lane 0 began
  EventId end_of_last_replay_ = -1;  // in lane 0
  GraphUse use_;
};

}  // namespace cp::runtime
