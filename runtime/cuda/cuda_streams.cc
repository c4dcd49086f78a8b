#include "runtime/cuda/cuda_streams.h"

#include <algorithm>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "shared/base/error.h"

namespace cp::runtime {

CudaStream::CudaStream(Priority priority) {
  int least = 0, greatest = 0;
  CP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CP_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == Priority::high ? greatest : least));
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

CudaEvent::CudaEvent(Timing timing) {
  CP_CUDA(
      cudaEventCreateWithFlags(&event_, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming));
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

namespace {

// "Not ready" is no error here. It may stay as the thread's last error, which libraries ask for, so it is
// forgotten.
bool is_success(cudaError_t error, const char* call) {
  if (error == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check_cuda(error, call);
  return true;
}

}  // namespace

bool is_finished(cudaStream_t stream) { return is_success(cudaStreamQuery(stream), "cudaStreamQuery"); }
bool is_finished(cudaEvent_t event) { return is_success(cudaEventQuery(event), "cudaEventQuery"); }

// ---- StepEvents

StepEvents::StepEvents() {
  // So that no run of a kept plan has to.
  ring_.reserve(static_cast<std::size_t>(kRing));
  pairs_.reserve(static_cast<std::size_t>(kPairs));
  anchor();
}

void StepEvents::forget() {
  steps_.clear();
  used_events_ = 0;
  finished_ = next_;
  std::ranges::fill(last_, nullptr);
}

void StepEvents::add_stream(cudaStream_t stream) {
  CP_INVARIANT(streams_.size() + 1 < (std::size_t{1} << kStreamBits), streams_.size(), " streams");
  streams_.push_back(stream);
  last_.push_back(nullptr);
  last_pair_.push_back(-1);
}

void StepEvents::reserve(std::size_t steps) {
  steps_.reserve(steps);
  while (pool_.size() < 2 * steps) pool_.emplace_back(CudaEvent::Timing::on);
}

void StepEvents::restart() {
  forget();
  anchor();
}

void StepEvents::make_all(bool pairs) {
  while (std::ssize(ring_) < kRing) ring_.emplace_back();
  for (Recorded& recorded : ring_) make_own(recorded);
  while (pairs && std::ssize(pairs_) < kPairs) add_pair();
}

void StepEvents::make_own(Recorded& recorded) {
  if (!recorded.own) recorded.own.emplace(CudaEvent::Timing::off);
}

void StepEvents::add_pair() {
  pairs_.push_back({CudaEvent(CudaEvent::Timing::off), CudaEvent(CudaEvent::Timing::off)});
}

StepEvents::Pair StepEvents::begin_untimed(StreamId stream) {
  if (std::ssize(pairs_) < std::min(next_pair_ + 1, kPairs)) add_pair();
  const auto& [begin, end] = pairs_[static_cast<std::size_t>(next_pair_++ % kPairs)];
  CP_CUDA(cudaEventRecord(begin.get(), streams_.at(static_cast<std::size_t>(stream))));
  enqueued(stream);
  return {begin.get(), end.get()};
}

void StepEvents::end_untimed(StreamId stream, const Pair& pair) {
  const auto at = static_cast<std::size_t>(stream);
  CP_CUDA(cudaEventRecord(pair.end, streams_[at]));
  last_[at] = pair.end;
  last_pair_[at] = next_pair_ - 1;  // no other has begun since
}

cudaEvent_t StepEvents::next_event() {
  if (used_events_ == pool_.size()) pool_.emplace_back(CudaEvent::Timing::on);
  return pool_[used_events_++].get();
}

// If the step before has already ended, its end cannot be the begin of this one: this one begins only when
// the host gets to it, so an event of its own is recorded.
StepEvents::Pair StepEvents::begin(StreamId stream) {
  cudaEvent_t begin = std::exchange(last_.at(static_cast<std::size_t>(stream)), nullptr);
  if (begin == nullptr || is_finished(begin)) {
    begin = next_event();
    CP_CUDA(cudaEventRecord(begin, streams_[static_cast<std::size_t>(stream)]));
  }
  steps_.push_back({stream, {begin, next_event()}, false});
  return steps_.back().pair;
}

void StepEvents::end() {
  Step& step = steps_.back();
  const auto stream = static_cast<std::size_t>(step.stream);
  CP_CUDA(cudaEventRecord(step.pair.end, streams_[stream]));
  step.has_end = true;
  last_[stream] = step.pair.end;
  last_pair_[stream] = -1;
}

void StepEvents::record_own(Recorded& recorded, StreamId stream) {
  make_own(recorded);
  recorded.event = recorded.own->get();
  recorded.pair = -1;
  CP_CUDA(cudaEventRecord(recorded.event, streams_[static_cast<std::size_t>(stream)]));
}

EventId StepEvents::reserve_event(StreamId stream) {
  if (std::ssize(ring_) < std::min(next_ + 1, kRing)) ring_.emplace_back();
  return next_++ << kStreamBits | stream;
}

EventId StepEvents::record(StreamId stream) {
  const EventId made = reserve_event(stream);
  record_again(made);
  return made;
}

void StepEvents::record_again(EventId event) {
  const StreamId stream = stream_of(event);
  const auto at = static_cast<std::size_t>(stream);
  Recorded& recorded = place_of(event);
  if (last_.at(at) == nullptr || is_used_again(last_pair_[at])) return record_own(recorded, stream);
  recorded.event = last_[at];
  recorded.pair = last_pair_[at];
}

// Of the event, or where it is too old, or its pair is another step's by now, of all that its stream has been
// given so far.
const StepEvents::Recorded& StepEvents::recorded_of(EventId event) {
  if (event >> kStreamBits < next_ - kRing || is_used_again(place_of(event).pair))
    event = record(stream_of(event));
  return place_of(event);
}

void StepEvents::wait(StreamId stream, EventId event) {
  if (event >> kStreamBits < finished_ || stream_of(event) == stream) return;
  wait(streams_.at(static_cast<std::size_t>(stream)), event);
  enqueued(stream);
}

void StepEvents::wait(cudaStream_t stream, EventId event) {
  if (event >> kStreamBits < finished_) return;
  CP_CUDA(cudaStreamWaitEvent(stream, recorded_of(event).event, 0));
}

bool StepEvents::has_happened(EventId event) {
  return event >> kStreamBits < finished_ || is_finished(recorded_of(event).event);
}

HostInterval StepEvents::record_on_host(cudaEvent_t event) const {
  const auto now = [this] {
    const auto since = std::chrono::steady_clock::now() - start_;
    return std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
  };
  HostInterval interval{now(), 0};
  CP_CUDA(cudaEventRecord(event, anchor_stream_.get()));
  CP_CUDA(cudaEventSynchronize(event));
  interval.after_ns = now();
  return interval;
}

void StepEvents::anchor() {
  std::optional<HostInterval> best;
  for (int tried = 0; tried < kAnchorTries; ++tried) {
    const HostInterval interval = record_on_host(anchors_[1 - anchor_].get());
    if (best && best->width_ns() <= interval.width_ns()) continue;
    best = interval;
    anchor_ = 1 - anchor_;
  }
  anchor_ns_ = best->middle_ns();
}

std::optional<std::int64_t> StepEvents::happened_ns(cudaEvent_t event) const {
  float milliseconds = 0;
  if (cudaEventElapsedTime(&milliseconds, anchors_[anchor_].get(), event) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return std::max<std::int64_t>(
      0, anchor_ns_ + static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
}

std::vector<StepEvents::Interval> StepEvents::take() {
  std::vector<Interval> intervals(steps_.size());
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (!steps_[i].has_end) continue;
    const auto begin = happened_ns(steps_[i].pair.begin), end = happened_ns(steps_[i].pair.end);
    if (begin && end) intervals[i] = {*begin, std::max(*begin, *end)};
  }
  restart();
  return intervals;
}

}  // namespace cp::runtime
