// HostStreams gives libraries whose calls block the streams and events that CUDA has. Each stream is a host
// thread.
//
// A stream is a queue of work that its thread runs in order. record() and wait() are entries of the queue, so
// only streams wait for one another; synchronize() alone blocks the caller.
//
// The first exception that any work throws ends everything: work that has not begun is dropped, streams that
// wait for an event go on, and synchronize() throws this exception, now and at every later call.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "shared/plan/device.h"

namespace cp::runtime {

class HostStreams {
 public:
  using Work = std::function<void()>;

  // `on_error` is called once, on the thread whose work was the first to fail. It should make the work of
  // other streams that is blocked return.
  explicit HostStreams(std::function<void()> on_error);
  // Drops the work that has not begun, and waits for the work that has.
  ~HostStreams();
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;

  // All functions are for one thread, which is not that of a stream.

  // Makes sure that the streams 0 .. count-1 exist. A stream must exist before it is used below.
  void require(std::size_t count);
  void enqueue(StreamId stream, Work work);
  EventId record(StreamId stream);
  void wait(StreamId stream, EventId event);
  void synchronize();

 private:
  struct Entry {
    Work work;
    EventId awaits = -1, completes = -1;
  };
  struct Stream {
    std::deque<Entry> entries;
    std::condition_variable has_entries;
    std::thread thread;
  };

  void push(StreamId stream, Entry entry);
  void run(Stream& stream);
  void run_entry(const Entry& entry);  // without the lock
  bool done(EventId event) const;

  std::function<void()> on_error_;
  std::mutex mutex_;  // guards everything below
  // event_ wakes streams that wait for events, and idle_ wakes synchronize(). There are two, and one more in
  // each stream, so that a thread is woken only for what it waits for: the end of a step does not wake the
  // host's thread.
  std::condition_variable event_, idle_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::int64_t unfinished_ = 0;  // entries of all streams
  EventId next_event_ = 0;
  std::set<EventId> pending_events_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace cp::runtime
