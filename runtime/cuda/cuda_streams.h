// Streams and events of the GPU: both as objects, the events that order streams, and those that time steps.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <cuda_runtime_api.h>

#include "shared/plan/device.h"

namespace cp::runtime {

// A stream of the current device that the default stream does not synchronize with.
class CudaStream {
 public:
  // `high`: when multiprocessors get free, its blocks come before those of other streams, so that a transfer begins while a long
  // kernel runs.
  enum class Priority : std::uint8_t { normal, high };
  explicit CudaStream(Priority priority);
  ~CudaStream();
  CudaStream(CudaStream&& other) noexcept : stream_(other.stream_) { other.stream_ = nullptr; }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  CudaStream& operator=(CudaStream&&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  enum class Timing : std::uint8_t { off, on };
  explicit CudaEvent(Timing timing);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  CudaEvent& operator=(CudaEvent&&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Whether what was enqueued, or recorded, has finished. Throw as check_cuda.
bool is_finished(cudaStream_t stream);
bool is_finished(cudaEvent_t event);

// Device::record and Device::wait, over a ring of events. For one thread.
//
// An event that was recorded kRing records ago has been used again. Who waits for it waits for all that its stream has been given
// until now: more than was asked, but enqueued before, and waiting for what was enqueued before makes no cycle (contract 5).
class StreamEvents {
 public:
  static constexpr std::int64_t kRing = 4096;

  // The streams, by StreamId; all that was recorded before has finished.
  void use(std::vector<cudaStream_t> streams);
  EventId record(StreamId stream);
  void wait(StreamId stream, EventId event);

 private:
  // An EventId is the number of the record, and in its lowest bits the stream.
  static constexpr int kStreamBits = 16;

  std::vector<cudaStream_t> streams_;
  std::vector<CudaEvent> ring_;  // grows up to kRing
  std::int64_t next_ = 0, finished_ = 0;
};

// Pairs of events around steps, and the times that they amount to. For one thread.
//
// An event tells its distance from another one, as a float of milliseconds: to the microsecond while both are less than 16 s
// apart. So the one that times count from is recorded anew, against the host's clock, by anchor() and take().
class StepTimes {
 public:
  struct Pair {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  struct Interval {
    std::int64_t begin_ns = -1, end_ns = -1;  // since the object's making; -1 where the pair did not happen
  };

  StepTimes();

  // Makes pairs before they are needed.
  void reserve(std::size_t pairs);
  // The next pair, for the caller to record. Its events are the caller's until take().
  Pair next();
  std::size_t used() const { return used_; }

  // The device is idle in both. Intervals come in the order of next(); their pairs are used again.
  void anchor();
  std::vector<Interval> take();

 private:
  std::optional<std::int64_t> happened_ns(cudaEvent_t event) const;  // since the object's making

  struct Events {
    CudaEvent begin{CudaEvent::Timing::on}, end{CudaEvent::Timing::on};
  };
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  CudaStream stream_{CudaStream::Priority::normal};
  CudaEvent anchor_{CudaEvent::Timing::on};
  std::int64_t anchor_ns_ = 0;
  std::deque<Events> pairs_;
  std::size_t used_ = 0;
};

}  // namespace cp::runtime
