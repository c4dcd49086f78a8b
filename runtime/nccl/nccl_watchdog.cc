#include "runtime/nccl/nccl_watchdog.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/cuda/cuda_streams.h"
#include "runtime/errors.h"
#include "runtime/nccl/nccl_error.h"

namespace cp::runtime {
namespace {

CollectiveBegin begin_of(const WatchedCollective& watched, std::chrono::milliseconds timeout) {
  return {.plan = *watched.plan,
          .collective = *watched.collective,
          .group = watched.communicator->group,
          .number = watched.number,
          .step = watched.step,
          .digest = watched.digest,
          .stream = watched.stream,
          .patience = timeout + watched.planned};
}

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

}  // namespace

std::string describe(Rank rank, const WatchedCollective& watched) {
  return str(
      "rank ", rank, ": ", operation_name(*watched.collective), " #", watched.sequence, " on ",
      watched.communicator->name,
      watched.of_graph > 0 ? str(", or one behind it in a graph of ", watched.of_graph, " collectives") : "");
}

ErrorFacts facts_of(Rank rank, const WatchedCollective& watched) {
  return {.operation = std::string(operation_name(*watched.collective)),
          .group = watched.communicator->name,
          .sequence = watched.sequence,
          .rank = rank,
          .step = watched.step};
}

NcclWatchdog::NcclWatchdog(Options options, NcclHandles& handles)
    : options_(std::move(options)), handles_(handles), thread_([this] { run(); }) {}

NcclWatchdog::~NcclWatchdog() { stop(); }

void NcclWatchdog::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(sleep_mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void NcclWatchdog::begin(const WatchedCollective& watched) {
  queue_.push(watched);
  if (!asleep_.load()) return;
  { const std::lock_guard lock(sleep_mutex_); }  // the thread holds it only while it looks at what was pushed
  wake_.notify_one();
}

void NcclWatchdog::run() {
  static_cast<void>(cudaSetDevice(options_.cuda_device));
  // What is asked of events here is no business of a capture that a thread of the program has under way.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  std::unique_lock lock(sleep_mutex_);
  while (!stopping_) {
    if (pending_.load() == 0) {
      asleep_.store(true);
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty() || pending_.load() > 0; });
      asleep_.store(false);
    }
    if (stopping_) return;
    lock.unlock();
    {
      const std::lock_guard look_lock(look_mutex_);
      look();
    }
    lock.lock();
    wake_.wait_for(lock, kPeriod, [&] { return stopping_; });
  }
}

void NcclWatchdog::drain() {
  const std::lock_guard lock(look_mutex_);
  do {
    look();
    if (handles_.is_ending()) {
      for (Stream& stream : streams_) {
        for (const Pending& pending : stream) pending.watched.under_way->fetch_sub(1);
        stream.clear();
      }
      pending_.store(0);
    }
  } while (pending_.load() > 0 || !queue_.empty());
}

void NcclWatchdog::drain(const std::atomic<std::int64_t>& under_way) {
  while (under_way.load(std::memory_order_acquire) > 0) {
    if (handles_.is_ending()) return drain();
    const std::lock_guard lock(look_mutex_);
    look();
  }
}

std::vector<std::int64_t> NcclWatchdog::take_ended() {
  const std::lock_guard lock(look_mutex_);
  return std::exchange(ended_, {});
}

void NcclWatchdog::look() {
  fetch();
  if (handles_.is_ending()) return;
  try {
    for (Stream& stream : streams_) {
      while (!stream.empty() && advance(stream)) {
      }
      if (!stream.empty()) ask_nccl(stream.front());
    }
  } catch (...) {
    options_.on_error(std::current_exception());
  }
}

void NcclWatchdog::fetch() {
  for (WatchedCollective* next = queue_.front(); next != nullptr; next = queue_.front()) {
    const auto stream = static_cast<std::size_t>(next->stream);
    if (stream >= streams_.size()) streams_.resize(stream + 1);
    streams_[stream].push_back({*next, fetched_++, false, {}});
    pending_.fetch_add(1);
    queue_.pop();
  }
}

// CUDA says of an error of the GPU neither which work failed nor what had ended before, so the message has
// the collective that the watchdog looked for: it, or what came behind it, is where the rank was.
bool NcclWatchdog::has_happened(cudaEvent_t event, const WatchedCollective& watched) const {
  try {
    return is_finished(event);
  } catch (const Error& error) {
    ErrorFacts facts = facts_of(options_.rank, watched);
    facts.culprits = {options_.rank};
    throw Error(error.kind(),
                str(error.what(), "; the first collective not seen to end is ",
                    describe(options_.rank, watched), ", step ", watched.step),
                std::move(facts));
  }
}

// Looks at the first collective of the stream. Returns true if it has ended and was removed.
bool NcclWatchdog::advance(Stream& stream) {
  Pending& first = stream.front();
  const WatchedCollective& watched = first.watched;
  if (!first.has_begun) {
    if (!has_happened(watched.begin, watched)) return false;
    first.has_begun = true;
    first.since = Clock::now();
    if (options_.on_collective) options_.on_collective(begin_of(watched, options_.timeout));
  }
  if (first.place < issued_.load(std::memory_order_acquire) && has_happened(watched.end, watched)) {
    const auto at = static_cast<std::size_t>(watched.stream);
    if (at >= ended_.size()) ended_.resize(at + 1);
    ++ended_[at];
    if (options_.on_collective_end) {
      const CollectiveBegin begin = begin_of(watched, options_.timeout);
      options_.on_collective_end({begin});
    }
    watched.under_way->fetch_sub(1, std::memory_order_release);
    stream.pop_front();
    pending_.fetch_sub(1);
    all_ended_.fetch_add(1, std::memory_order_release);
    stalled_.store(false);
    return true;
  }
  if (Clock::now() - first.since > options_.timeout + watched.planned) {
    if (options_.may_wait && options_.may_wait(begin_of(watched, options_.timeout))) {
      first.since = Clock::now();
      stalled_.store(true);
      return false;
    }
    const std::string planned = watched.planned.count() == 0 ? ""
                                                             : str(", ", seconds(watched.planned),
                                                                   " s of which the plan's kernels may take");
    throw Timeout(str(describe(options_.rank, watched), ": no progress for ",
                      seconds(options_.timeout + watched.planned), " s", planned),
                  facts_of(options_.rank, watched));
  }
  return false;
}

void NcclWatchdog::ask_nccl(const Pending& pending) {
  const ncclComm_t comm = *pending.watched.communicator->comm;
  const ncclResult_t state = handles_.async_error(comm);
  if (state != ncclSuccess && state != ncclInProgress)
    throw_nccl(state, comm, describe(options_.rank, pending.watched),
               facts_of(options_.rank, pending.watched));
}

}  // namespace cp::runtime
