// An NcclWatchdog follows the collectives of a device by the events before and after them, on a thread of its
// own.
//
// It reports that a collective has begun and that it has ended, in the order of its stream. It finds a
// collective that has begun and makes no progress for the timeout and the time of the kernels that were
// planned. And it asks NCCL for errors of its own while a collective is under way. Its thread looks every
// kPeriod while something is under way, and else sleeps.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/single_reader_queue.h"
#include "runtime/process_device.h"
#include "shared/base/error.h"

namespace cp::runtime {

// A collective to be followed. Everything that it points to must live until drain() or stop() has returned,
// or until `under_way` is 0.
struct WatchedCollective {
  const Plan* plan = nullptr;
  const Collective* collective = nullptr;
  const NcclCommunicator* communicator = nullptr;
  StreamId stream = 0;
  StepId step = 0;
  std::int64_t number = 0, sequence = 0;
  Digest digest;  // of all collectives on its group up to this one
  cudaEvent_t begin = nullptr, end = nullptr;
  std::chrono::milliseconds planned{0};  // of kernels that a rank may have to run before it comes
  // Of a CUDA graph: how many collectives it has, which all are seen to begin and end with it. Else 0.
  std::int64_t of_graph = 0;
  // Collectives of the prepared plan that have not been seen to end. The device counts up, the watchdog down.
  std::atomic<std::int64_t>* under_way = nullptr;
};

// "rank 3: all_gather #17 on cp[0,1,2,3]"
std::string describe(Rank rank, const WatchedCollective& watched);
// The same as data, for an error of the collective.
ErrorFacts facts_of(Rank rank, const WatchedCollective& watched);

class NcclWatchdog {
 public:
  static constexpr std::chrono::milliseconds kPeriod = kNcclLookPeriod;

  struct Options {
    Rank rank = 0;
    int cuda_device = 0;
    std::chrono::milliseconds timeout{30'000};  // beyond WatchedCollective::planned
    OnCollective on_collective;
    OnCollectiveEnd on_collective_end;
    std::function<bool(const CollectiveBegin&)> may_wait;  // that of NcclOptions
    std::function<void(std::exception_ptr)> on_error;  // called any number of times, on any thread that looks
  };
  NcclWatchdog(Options options, NcclHandles& handles);
  ~NcclWatchdog();  // stops
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // ---- the rank's thread; neither function waits for the watchdog
  // Call begin() before the calls of a collective, when the event of its begin is recorded, and issued()
  // after them, when the event of its end is recorded, too. The calls in between may block (the first ones of
  // a communicator connect); this counts as time without progress.
  void begin(const WatchedCollective& watched);
  void issued() { issued_.fetch_add(1, std::memory_order_release); }

  // ---- the rank's thread, while nothing is launched
  // Looks until it has seen all collectives end. If the end of the handles has begun, it forgets those that
  // are left instead.
  void drain();
  // Looks until all collectives that count there have been seen to end, or the end of the handles has begun.
  void drain(const std::atomic<std::int64_t>& under_way);
  // How many collectives have ended. For any thread.
  std::int64_t ended() const { return all_ended_.load(std::memory_order_acquire); }
  // Returns how many collectives have ended on each stream since the last call, by the device's StreamId.
  std::vector<std::int64_t> take_ended();

  // Whether a collective has made no progress for the timeout and still waits, because it may. Any thread may
  // call this.
  bool is_stalled() const { return stalled_.load(); }

  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    WatchedCollective watched;
    std::int64_t place = 0;  // among all
    bool has_begun = false;
    Clock::time_point since;  // when it was seen to begin, or was last allowed to wait on
  };
  using Stream = std::deque<Pending>;

  void run();
  // These need look_mutex_.
  void look();
  void fetch();
  bool has_happened(cudaEvent_t event, const WatchedCollective& watched) const;
  bool advance(Stream& stream);
  void ask_nccl(const Pending& pending);

  const Options options_;
  NcclHandles& handles_;
  // Room for what may be under way on a device without traces, so that launching allocates nothing.
  SingleReaderQueue<WatchedCollective, StepEvents::kPairs> queue_;
  std::atomic<std::int64_t> issued_{0};
  std::atomic<bool> stalled_{false};

  std::mutex look_mutex_;  // guards what follows
  std::vector<Stream> streams_;
  std::vector<std::int64_t> ended_;
  std::int64_t fetched_ = 0;
  std::atomic<std::int64_t> pending_{0}, all_ended_{0};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
  bool stopping_ = false;  // guarded by sleep_mutex_
  std::thread thread_;     // last: uses the above
};

}  // namespace cp::runtime
