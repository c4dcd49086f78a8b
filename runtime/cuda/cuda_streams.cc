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

// "Not ready" stays as the thread's last error, which launches of kernels ask for.
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

// ---- StreamEvents

void StreamEvents::use(std::vector<cudaStream_t> streams) {
  CP_INVARIANT(streams.size() < (std::size_t{1} << kStreamBits), streams.size(), " streams");
  streams_ = std::move(streams);
  finished_ = next_;
}

EventId StreamEvents::record(StreamId stream) {
  if (std::ssize(ring_) < std::min(next_ + 1, kRing)) ring_.emplace_back(CudaEvent::Timing::off);
  CP_CUDA(cudaEventRecord(ring_[static_cast<std::size_t>(next_ % kRing)].get(),
                          streams_.at(static_cast<std::size_t>(stream))));
  return next_++ << kStreamBits | stream;
}

void StreamEvents::wait(StreamId stream, EventId event) {
  const std::int64_t number = event >> kStreamBits;
  if (number < finished_) return;
  if (number < next_ - kRing) event = record(static_cast<StreamId>(event & ((1 << kStreamBits) - 1)));
  CP_CUDA(cudaStreamWaitEvent(streams_.at(static_cast<std::size_t>(stream)),
                              ring_[static_cast<std::size_t>((event >> kStreamBits) % kRing)].get(), 0));
}

// ---- StepTimes

StepTimes::StepTimes() { anchor(); }

void StepTimes::reserve(std::size_t pairs) {
  while (pairs_.size() < pairs) pairs_.emplace_back();
}

StepTimes::Pair StepTimes::next() {
  if (used_ == pairs_.size()) pairs_.emplace_back();
  const Events& events = pairs_[used_++];
  return {events.begin.get(), events.end.get()};
}

void StepTimes::anchor() {
  CP_CUDA(cudaEventRecord(anchor_.get(), stream_.get()));
  CP_CUDA(cudaEventSynchronize(anchor_.get()));
  anchor_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
}

std::optional<std::int64_t> StepTimes::happened_ns(cudaEvent_t event) const {
  float milliseconds = 0;
  if (cudaEventElapsedTime(&milliseconds, anchor_.get(), event) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return std::max<std::int64_t>(
      0, anchor_ns_ + static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
}

std::vector<StepTimes::Interval> StepTimes::take() {
  std::vector<Interval> intervals(used_);
  for (std::size_t i = 0; i < used_; ++i) {
    const auto begin = happened_ns(pairs_[i].begin.get()), end = happened_ns(pairs_[i].end.get());
    if (begin && end) intervals[i] = {*begin, std::max(*begin, *end)};
  }
  used_ = 0;
  anchor();
  return intervals;
}

}  // namespace cp::runtime
