// Streams and events of the GPU as objects, and the events of a device's steps.
#pragma once

#include <array>
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
  // With `high`, the stream's blocks come before those of other streams when multiprocessors get free. So a
  // transfer begins while a long kernel runs.
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

// Whether all work of the stream, or the work before the event, has finished. They throw as check_cuda().
bool is_finished(cudaStream_t stream);
bool is_finished(cudaEvent_t event);

// When something happened by the host's clock, as far as the host can tell: between two moments.
struct HostInterval {
  std::int64_t before_ns = 0, after_ns = 0;
  std::int64_t width_ns() const { return after_ns - before_ns; }
  std::int64_t middle_ns() const { return before_ns + width_ns() / 2; }
};

// The events of a device's streams. They time steps, and they order streams. One event may serve three
// purposes: it is the end of a step, the begin of the next one on its stream (if that waits for nothing
// else), and what other streams wait for. So, as long as its stream is busy, a step records only one event.
// All functions are for one thread.
class StepEvents {
 public:
  struct Pair {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  struct Interval {
    std::int64_t begin_ns = -1, end_ns = -1;  // since this object was made; -1 if the step did not end
  };

  StepEvents();

  // Forgets all events, and the intervals that were not taken. Call it only while the device is idle.
  void forget();
  // Does the same, and sets the time that intervals count from anew.
  void restart();
  // One more stream, which gets the next StreamId; others may be busy.
  void add_stream(cudaStream_t stream);
  // Makes the events of so many steps, so that as many begin() and end() make none.
  void reserve(std::size_t steps);

  // To be called before and after what a step enqueues on its stream. end() is for the step that began last.
  // The events of the pair stay valid until take() or forget().
  Pair begin(StreamId stream);
  void end();

  // The same without times, for devices that keep none: the pair is used again kPairs pairs later, and the
  // caller sees to it that nobody asks for it any more then. Chosen: a collective in flight needs a pair, and
  // no program has thousands of them.
  static constexpr std::int64_t kPairs = 4096;
  // The end also serves as what other streams wait for, until the pair is used again.
  Pair begin_untimed(StreamId stream);
  void end_untimed(StreamId stream, const Pair& pair);
  // Makes all events that record() and, with `pairs`, begin_untimed() may ever need, so that runs make none.
  void make_all(bool pairs);
  // The number of steps whose intervals are kept, and for how many more steps there are events.
  std::size_t used() const { return steps_.size(); }
  std::size_t left() const { return (pool_.size() - used_events_) / 2; }

  // Device::record and Device::wait. Only the last kRing events are kept. Waiting for an older one waits for
  // everything that its stream has been given so far. That is later than necessary, but never a deadlock: all
  // of it was enqueued before, and waiting for earlier work makes no cycle (contract 5).
  // The number is chosen: with a smaller ring, waits for old events end later.
  static constexpr std::int64_t kRing = 4096;
  EventId record(StreamId stream);
  // A wait for an event of the same stream asks nothing of CUDA.
  void wait(StreamId stream, EventId event);
  // The same for a stream that is none of these.
  void wait(cudaStream_t stream, EventId event);
  bool has_happened(EventId event);
  // The number of an event that record_again() is to record, before anybody waits for it.
  EventId reserve_event(StreamId stream);
  // Records it anew on its stream, as what the stream has been given by now; for one of the last kRing.
  void record_again(EventId event);
  // To be called if something else was enqueued on the stream.
  void enqueued(StreamId stream) { last_[static_cast<std::size_t>(stream)] = nullptr; }

  // Returns the intervals of the steps, in the order of begin(), and uses their events again. Call it only
  // while the device is idle.
  std::vector<Interval> take();

 private:
  // An EventId is the number of the record, with the stream in its lowest 16 bits. Plans have far fewer than
  // 64 Ki streams, and 47 bits of the number last for ever.
  static constexpr int kStreamBits = 16;
  struct Recorded {
    std::optional<CudaEvent> own;
    cudaEvent_t event = nullptr;  // `own`, or a step's end
    std::int64_t pair = -1;       // whose end it is, of begin_untimed()
  };
  struct Step {
    StreamId stream = 0;
    Pair pair;
    bool has_end = false;  // whether the end was recorded
  };
  static StreamId stream_of(EventId event) { return static_cast<StreamId>(event & ((1 << kStreamBits) - 1)); }
  Recorded& place_of(EventId event) {
    return ring_[static_cast<std::size_t>((event >> kStreamBits) % kRing)];
  }
  bool is_used_again(std::int64_t pair) const { return pair >= 0 && pair < next_pair_ - kPairs; }
  void record_own(Recorded& recorded, StreamId stream);
  cudaEvent_t next_event();
  const Recorded& recorded_of(EventId event);
  // CUDA tells the distance of two events as a float of milliseconds, which is exact to the microsecond only
  // as long as they are less than 16 s apart (a float has 24 bits). So the event from which times count is
  // recorded anew, against the host's clock, whenever the device is idle.
  //
  // The host reads its clock before it records the event and after it has waited for it, which may be late by
  // a time slice or more. So it does this kAnchorTries times and keeps the event that it knows best, which is
  // at most half of its interval beside the middle of it. Chosen: a try takes some 10 us on an idle GPU, and
  // a thread that loses its processor in one of five seldom does in all.
  static constexpr int kAnchorTries = 5;
  void anchor();
  HostInterval record_on_host(cudaEvent_t event) const;
  std::optional<std::int64_t> happened_ns(cudaEvent_t event) const;  // since the object's making

  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> last_;        // by stream: the step's end behind which nothing was enqueued
  std::vector<std::int64_t> last_pair_;  // by stream: whose end that is, of begin_untimed(); else -1

  std::deque<CudaEvent> pool_;
  std::vector<std::array<CudaEvent, 2>> pairs_;  // of begin_untimed(); grows up to kPairs
  std::int64_t next_pair_ = 0;
  std::size_t used_events_ = 0;
  std::vector<Step> steps_;

  static void make_own(Recorded& recorded);
  void add_pair();

  std::vector<Recorded> ring_;  // grows up to kRing
  std::int64_t next_ = 0, finished_ = 0;

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  CudaStream anchor_stream_{CudaStream::Priority::normal};
  std::array<CudaEvent, 2> anchors_{CudaEvent(CudaEvent::Timing::on), CudaEvent(CudaEvent::Timing::on)};
  std::size_t anchor_ = 0;  // the one in use; the other is for the next try
  std::int64_t anchor_ns_ = 0;
};

}  // namespace cp::runtime
