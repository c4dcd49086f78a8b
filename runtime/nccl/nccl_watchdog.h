// NcclWatchdog: follows the collectives of a device by the events around them, without the rank's thread.
//
// It reports each collective that begins and that has ended, in the order of its stream; finds one that has
// begun and makes no progress for a time; and asks NCCL for errors of its own while any is under way. It
// looks every kPeriod while something is under way, on its own thread, and sleeps otherwise.
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

#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/single_reader_queue.h"
#include "runtime/process_device.h"
#include "shared/base/error.h"

namespace cp::runtime {

// Everything that it points to lives until drain() or stop() has returned.
struct WatchedCollective {
  const Plan* plan = nullptr;
  const Collective* collective = nullptr;
  const NcclCommunicator* communicator = nullptr;
  StreamId stream = 0;
  StepId step = 0;
  std::int64_t number = 0, sequence = 0;
  Digest digest;  // of all on its group up to this one
  cudaEvent_t begin = nullptr, end = nullptr;
};

// "rank 3: all_gather #17 on cp[0,1,2,3]"
std::string describe(Rank rank, const WatchedCollective& watched);
// The same as data, of an error of it.
ErrorFacts facts_of(Rank rank, const WatchedCollective& watched);

class NcclWatchdog {
 public:
  static constexpr std::chrono::milliseconds kPeriod = kNcclLookPeriod;

  struct Options {
    Rank rank = 0;
    int cuda_device = 0;
    std::chrono::milliseconds timeout{30'000};
    OnCollective on_collective;
    OnCollectiveEnd on_collective_end;
    std::function<bool(const CollectiveBegin&)> may_wait;  // of NcclOptions
    std::function<void(std::exception_ptr)> on_error;      // any number of times, on any thread that looks
  };
  NcclWatchdog(Options options, NcclHandles& handles);
  ~NcclWatchdog();  // stops
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // ---- the rank's thread; neither waits for the watchdog
  // Before the calls of a collective, whose begin is recorded; and after them, when its end is too. In
  // between the calls may block (the first ones of a communicator connect), which counts as time without
  // progress.
  void begin(const WatchedCollective& watched);
  void issued() { issued_.fetch_add(1, std::memory_order_release); }

  // ---- the rank's thread, while nothing is launched
  // Looks until all collectives have been seen to end, or the end of the handles has begun: then it forgets
  // those that are left.
  void drain();
  // How many have ended on each stream since the last call; by StreamId.
  std::vector<std::int64_t> take_ended();

  // Whether a collective that has begun is without progress for the timeout, and waits on. For any thread.
  bool is_stalled() const { return stalled_.load(); }

  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    WatchedCollective watched;
    std::int64_t place = 0;  // among all
    bool has_begun = false;
    Clock::time_point since;  // the begin, or the last time that something was seen to go on
  };
  using Stream = std::deque<Pending>;

  void run();
  // With look_mutex_.
  void look();
  void fetch();
  bool advance(Stream& stream);
  void ask_nccl(const Pending& pending);

  const Options options_;
  NcclHandles& handles_;
  SingleReaderQueue<WatchedCollective> queue_;
  std::atomic<std::int64_t> issued_{0};
  std::atomic<bool> stalled_{false};

  std::mutex look_mutex_;  // of the below
  std::vector<Stream> streams_;
  std::vector<std::int64_t> ended_;
  std::int64_t fetched_ = 0;
  std::atomic<std::int64_t> pending_{0};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
  bool stopping_ = false;  // with sleep_mutex_
  std::thread thread_;     // last: uses the above
};

}  // namespace cp::runtime
