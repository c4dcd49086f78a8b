// HostStreams gives libraries whose calls block the streams and events that CUDA has. Each stream is a host
// thread.
//
// A stream is a FIFO of work that one thread of its own runs. An event says how much of a stream's work must
// have finished; streams wait for events as entries of their FIFO, so that only await() and synchronize()
// block the caller. The first exception that any work throws ends everything: what has not begun is dropped,
// streams that wait go on, and await() and synchronize() throw it, now and ever after.
//
// Work is any type with operator(). If it allocates nothing, enqueueing allocates only where more work waits
// than ever before.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <boost/circular_buffer.hpp>

#include "shared/plan/device.h"

namespace cp::runtime {

template <class Work>
class HostStreams {
 public:
  // `on_error` is called once, on the thread whose work failed: it should make blocked work of other streams
  // return.
  explicit HostStreams(std::function<void()> on_error) : on_error_(std::move(on_error)) {}
  ~HostStreams();  // drops what has not begun and waits for what has
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;

  // Makes sure that streams 0 .. count-1 exist, while others may run. All functions are for one thread, the
  // host's.
  void require(std::size_t count);
  void enqueue(StreamId stream, Work work) { push(stream, {.work = std::move(work)}); }
  // Events stay valid as long as this object.
  EventId record(StreamId stream);
  void wait(StreamId stream, EventId event);
  bool has_happened(EventId event);  // false after an error
  void await(EventId event);
  void synchronize();
  bool has_failed();
  // Waits until nothing runs, and throws nothing.
  void drain();

 private:
  // Work, or an event to wait for.
  struct Entry {
    std::optional<Work> work = {};
    EventId awaits = -1;
  };
  struct Stream {
    boost::circular_buffer<Entry> entries{kFirstEntries};
    std::condition_variable has_entries;
    std::int64_t enqueued = 0, finished = 0;
    // The least count of finished entries that anybody waits for.
    std::int64_t awaited = kNobody;
    std::thread thread;
  };
  static constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();
  // Room in a stream at first; it doubles when it is full. Chosen: more than the steps of a layer on a
  // stream.
  static constexpr std::size_t kFirstEntries = 64;

  // An event is a count of a stream's entries, above the stream in the lowest bits. 2^16 streams are more
  // than a process can have threads, and 2^47 entries take years.
  static constexpr int kStreamBits = 16;
  static EventId event_of(StreamId stream, std::int64_t count) { return count << kStreamBits | stream; }
  static std::int64_t count_of(EventId event) { return event >> kStreamBits; }

  void push(StreamId stream, Entry entry);
  void run(Stream& stream);
  void run_work(Work& work);  // without the lock
  Stream& stream_of(EventId event) {
    return *streams_.at(static_cast<std::size_t>(event & ((EventId{1} << kStreamBits) - 1)));
  }
  bool is_done(EventId event) { return event < 0 || stream_of(event).finished >= count_of(event); }
  // Blocks until the event has happened or there is an error, or this object ends.
  void wait_here(EventId event, std::unique_lock<std::mutex>& lock);

  std::function<void()> on_error_;
  std::mutex mutex_;  // guards everything below
  // event_ wakes streams that wait for events, and idle_ wakes synchronize(). There are two, and one more in
  // each stream, so that a thread is woken only for what it waits for: the end of a step does not wake the
  // host's thread.
  std::condition_variable event_, idle_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::int64_t unfinished_ = 0;  // entries of all streams
  std::exception_ptr error_;
  bool stopping_ = false;
};

template <class Work>
HostStreams<Work>::~HostStreams() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& stream : streams_) stream->entries.clear();
  }
  event_.notify_all();
  for (const auto& stream : streams_) {
    stream->has_entries.notify_all();
    stream->thread.join();
  }
}

template <class Work>
void HostStreams<Work>::require(std::size_t count) {
  const std::lock_guard lock(mutex_);
  while (streams_.size() < count) {
    Stream& stream = *streams_.emplace_back(std::make_unique<Stream>());
    stream.thread = std::thread([this, &stream] { run(stream); });
  }
}

template <class Work>
void HostStreams<Work>::push(StreamId id, Entry entry) {
  Stream* stream = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stream = streams_.at(static_cast<std::size_t>(id)).get();
    if (stream->entries.full()) stream->entries.set_capacity(2 * stream->entries.capacity());
    stream->entries.push_back(std::move(entry));
    ++stream->enqueued;
    ++unfinished_;
  }
  stream->has_entries.notify_one();
}

template <class Work>
EventId HostStreams<Work>::record(StreamId stream) {
  const std::lock_guard lock(mutex_);
  return event_of(stream, streams_.at(static_cast<std::size_t>(stream))->enqueued);
}

template <class Work>
void HostStreams<Work>::wait(StreamId stream, EventId event) {
  {
    const std::lock_guard lock(mutex_);
    if (is_done(event) || &stream_of(event) == streams_.at(static_cast<std::size_t>(stream)).get()) return;
  }
  push(stream, {.awaits = event});
}

template <class Work>
bool HostStreams<Work>::has_happened(EventId event) {
  const std::lock_guard lock(mutex_);
  return !error_ && is_done(event);
}

template <class Work>
void HostStreams<Work>::await(EventId event) {
  std::unique_lock lock(mutex_);
  wait_here(event, lock);
  if (error_) std::rethrow_exception(error_);
}

template <class Work>
void HostStreams<Work>::synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

template <class Work>
bool HostStreams<Work>::has_failed() {
  const std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

template <class Work>
void HostStreams<Work>::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
}

// Whoever is woken while his event has not happened says again what he waits for.
template <class Work>
void HostStreams<Work>::wait_here(EventId event, std::unique_lock<std::mutex>& lock) {
  while (!stopping_ && !error_ && !is_done(event)) {
    Stream& awaited = stream_of(event);
    awaited.awaited = std::min(awaited.awaited, count_of(event));
    event_.wait(lock);
  }
}

template <class Work>
void HostStreams<Work>::run(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    stream.has_entries.wait(lock, [&] { return stopping_ || !stream.entries.empty(); });
    if (stopping_) return;
    {
      Entry entry = std::move(stream.entries.front());
      stream.entries.pop_front();
      wait_here(entry.awaits, lock);
      if (!stopping_ && !error_ && entry.work) {
        lock.unlock();
        run_work(*entry.work);
        entry.work.reset();
        lock.lock();
      }
    }
    ++stream.finished;
    if (stream.finished >= stream.awaited) {
      stream.awaited = kNobody;
      event_.notify_all();
    }
    if (--unfinished_ == 0) idle_.notify_all();
  }
}

template <class Work>
void HostStreams<Work>::run_work(Work& work) {
  try {
    work();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      error_ = std::current_exception();
    }
    event_.notify_all();
    on_error_();
  }
}

}  // namespace cp::runtime
