#include "runtime/nccl/graph_runs.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include <cuda_runtime_api.h>

#include "runtime/nccl/nccl_error.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {

void refuse_captured(CallerStream caller) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(caller), &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // of running work, which whoever waits is told
    return;
  }
  if (status == cudaStreamCaptureStatusNone) return;
  throw InvalidInput(
      "the caller's stream is being captured into a CUDA graph, of which a run cannot be part; run the "
      "plan outside of the capture, and let NcclOptions::graphs make it a graph of its own");
}

GraphRuns::GraphRuns(CudaGraphs& graphs, NcclSteps& steps, LaunchStep launch_step)
    : graphs_(graphs), steps_(steps), events_(steps.events), launch_step_(std::move(launch_step)) {}

void GraphRuns::allow(NcclPrepared& prepared) {
  const Plan& plan = *prepared.plan;
  prepared.graphs.emplace(graphs_, plan.buffers.size());
  if (const std::string why = refuse_graph(plan); !why.empty()) refuse(prepared, why);
}

void GraphRuns::refuse(NcclPrepared& prepared, const std::string& why) {
  const NcclOptions& options = steps_.options;
  prepared.graphs->refuse(why);
  use_.refused.push_back(str("rank ", options.rank, ": a plan of ", steps_of(*prepared.plan).size(),
                             " steps is launched step by step, not as a graph: ", why));
  if (options.on_refused_graph) options.on_refused_graph(use_.refused.back());
}

// ---- a run

void GraphRuns::begin(NcclPrepared& prepared, StreamId first) {
  run_ = &prepared;
  first_ = first;
  std::shared_ptr<PlanGraph> graph;
  if (prepared.graphs && prepared.graphs->why_not().empty()) graph = prepared.graphs->of(*prepared.memory);
  if (graph == nullptr) {
    ++use_.launched;
    return;
  }
  join_loose(first);
  if (graph->id >= 0) {
    ++use_.replayed;
    replayed_ = std::move(graph);
    end_of_replay_ = events_.reserve_event(first);
    return;
  }
  captured_ = std::make_unique<Captured>();
  captured_->graph = std::move(graph);
  for (const StreamId stream : prepared.streams) events_.enqueued(stream);
  capturing([&] { captured_->capture.emplace(steps_.stream(first)); });
}

bool GraphRuns::takes(NcclPrepared& prepared, const StepRef& ref, std::int64_t iteration, StreamId stream) {
  if (run_ == nullptr) begin_loose(prepared, stream);
  if (replayed_ != nullptr) return true;
  if (captured_ == nullptr) return false;
  capture(ref, iteration, stream);
  return true;
}

std::optional<EventId> GraphRuns::record(StreamId stream) {
  if (replayed_ != nullptr) return end_of_replay_;
  if (captured_ == nullptr) return {};
  const EventId event = events_.reserve_event(stream);
  captured_->calls.push_back({.ref = {}, .stream = stream, .event = event});
  capturing([&] { events_.record_again(event); });
  return event;
}

bool GraphRuns::wait(StreamId stream, EventId event) {
  if (replayed_ != nullptr) return true;
  if (captured_ == nullptr) return false;
  captured_->calls.push_back({.ref = {}, .stream = stream, .event = event, .waits = true});
  capturing([&] { events_.wait(stream, event); });
  return true;
}

void GraphRuns::end(EventId end) {
  if (captured_ != nullptr) end_capture();
  if (replayed_ != nullptr) replay(end);
}

void GraphRuns::leave() {
  run_ = nullptr;
  replayed_ = nullptr;
  captured_ = nullptr;
}

// ---- loose steps

void GraphRuns::begin_loose(const NcclPrepared& prepared, StreamId stream) {
  if (has_loose_.size() < steps_.streams.size()) has_loose_.resize(steps_.streams.size());
  if (has_loose_[static_cast<std::size_t>(stream)]) return;
  for (const StreamId one : prepared.streams) {
    if (has_loose_[static_cast<std::size_t>(one)]) continue;
    has_loose_[static_cast<std::size_t>(one)] = true;
    if (end_of_last_replay_ >= 0) events_.wait(one, end_of_last_replay_);
  }
}

// Those of a plan that was in use before may be on streams that the run's plan does not have.
void GraphRuns::join_loose(StreamId first) {
  if (run_->lane != 0) return;
  for (std::size_t stream = 0; stream < has_loose_.size(); ++stream) {
    if (!has_loose_[stream]) continue;
    has_loose_[stream] = false;
    events_.wait(first, events_.record(static_cast<StreamId>(stream)));
  }
}

void GraphRuns::forget() {
  has_loose_.assign(has_loose_.size(), false);
  end_of_last_replay_ = -1;
}

// ---- capture

// Runs f(), whose calls become part of the graph. An error of CUDA's, unless the GPU is lost, says that they
// cannot.
template <class F>
void GraphRuns::capturing(const F& f) {
  if (!captured_->why_not.empty()) return;
  try {
    f();
  } catch (const InvalidInput& error) {
    captured_->why_not = error.what();
  }
}

void GraphRuns::capture(const StepRef& ref, std::int64_t iteration, StreamId stream) {
  captured_->calls.push_back({.ref = ref, .iteration = iteration, .stream = stream});
  captured_->graph->steps.push_back({ref.step, stream});
  const NcclOptions& options = steps_.options;
  const auto* const collective = std::get_if<Collective>(&ref.step->work);
  ncclResult_t result = ncclSuccess;
  capturing([&] {
    if (options.before_step) options.before_step(*ref.step, steps_.stream(stream));
    if (collective == nullptr) {
      run_->kernels->launch(ref, iteration, steps_.stream(stream));
    } else {
      result = capture_collective(ref, *collective, iteration, stream);
    }
  });
  if (result == ncclSuccess) return;
  const NcclCommunicator& member = run_->launches->member(group_of(*collective));
  const std::string operation(operation_name(*collective));
  throw_nccl(result, *member.comm, str("rank ", options.rank, ": capturing ", operation, " on ", member.name),
             {.operation = operation, .group = member.name, .rank = options.rank, .step = ref.id});
}

// In the order of NcclOrder, inside of the graph.
ncclResult_t GraphRuns::capture_collective(const StepRef& ref, const Collective& collective,
                                           std::int64_t iteration, StreamId stream) {
  NcclCommunicator& member = run_->launches->member(group_of(collective));
  const bool takes_turns = steps_.order.takes_turns(member);
  if (takes_turns && captured_->turn >= 0) events_.wait(stream, captured_->turn);
  if (!steps_.handles.enter()) return ncclSuccess;
  PlanGraph& graph = *captured_->graph;
  const std::size_t first_call = graph.calls.size();
  const ncclResult_t result = run_->launches->capture(collective, {ref.step->stream, 0, iteration},
                                                      steps_.stream(stream), graph.calls);
  steps_.handles.leave();
  graph.collectives.push_back({.collective = &collective,
                               .member = &member,
                               .step = ref.id,
                               .stream = stream,
                               .first_call = first_call,
                               .calls = graph.calls.size() - first_call});
  if (takes_turns) captured_->turn = events_.record(stream);
  return result;
}

// The run is replayed then, or was launched here.
void GraphRuns::end_capture() {
  const std::unique_ptr<Captured> captured = std::move(captured_);
  if (captured->why_not.empty()) {
    try {
      captured->graph->count();
      captured->graph->id = graphs_.add(captured->capture->end());
      ++use_.captured;
      replayed_ = captured->graph;
      return;
    } catch (const InvalidInput& error) {
      captured->why_not = error.what();
    }
  }
  captured->capture.reset();
  refuse(*run_, captured->why_not);
  ++use_.launched;
  for (const Captured::Call& call : captured->calls) {
    if (call.ref.step != nullptr) {
      launch_step_(call.ref, call.iteration, call.stream);
    } else if (call.waits) {
      events_.wait(call.stream, call.event);
    } else {
      events_.record_again(call.event);
    }
  }
}

// ---- replay

bool GraphRuns::await_room(const PlanGraph& graph) {
  for (const auto& [member, count] : graph.counts) {
    if (!steps_.order.await_room(*member, steps_.handles, count)) return false;
  }
  return graph.collectives.empty() || steps_.await_pair(std::ssize(graph.collectives));
}

void GraphRuns::replay(EventId end) {
  const PlanGraph& graph = *replayed_;
  const bool traces = steps_.options.traces;
  const cudaStream_t on = steps_.stream(first_);
  if (!await_room(graph)) return;
  const auto turn = std::ranges::find_if(graph.collectives, [this](const GraphCollective& one) {
    return steps_.order.takes_turns(*one.member);
  });
  if (turn != graph.collectives.end() && steps_.order.await_turn(*turn->member, on)) events_.enqueued(first_);
  StepEvents::Pair pair;
  if (traces) {
    pair = events_.begin(first_);
    steps_.unread.push_back({nullptr, first_, replayed_});
  } else if (!graph.collectives.empty()) {
    pair = events_.begin_untimed(first_);
  }
  for (const GraphCollective& one : graph.collectives) begin_replayed(one, graph, pair);
  if (!graphs_.launch(graph.id, on)) return;
  events_.enqueued(first_);
  if (traces) {
    events_.end();
  } else if (!graph.collectives.empty()) {
    events_.end_untimed(first_, pair);
  }
  for (const GraphCollective& one : graph.collectives) {
    steps_.watchdog.issued();
    steps_.order.done(*one.member, on, pair.end);
  }
  events_.record_again(end);
  if (run_->lane == 0) end_of_last_replay_ = end;
}

void GraphRuns::begin_replayed(const GraphCollective& one, const PlanGraph& graph,
                               const StepEvents::Pair& pair) {
  WatchedCollective watched = run_->begin(*one.collective, *one.member, one.step, one.stream, pair);
  watched.of_graph = std::ssize(graph.collectives);
  steps_.watchdog.begin(watched);
  run_->launches->replayed(std::span(graph.calls).subspan(one.first_call, one.calls), steps_.launches++,
                           watched.sequence);
}

}  // namespace cp::runtime
