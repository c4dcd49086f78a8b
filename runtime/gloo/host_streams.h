// HostStreams: CUDA's streams and events on host threads, for libraries that block.
//
// A stream is a FIFO of work that one thread of its own runs. record and wait are entries of the FIFO, so
// that only streams wait for one another; synchronize alone blocks the caller. The first exception that any
// work throws ends everything: what has not begun is dropped, streams that wait go on, and synchronize throws
// it, now and ever after.
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

  // `on_error` is called once, on the thread whose work failed: it should make blocked work of other streams
  // return.
  explicit HostStreams(std::function<void()> on_error);
  ~HostStreams();  // drops what has not begun and waits for what has
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;

  // Makes sure that streams 0 .. count-1 exist. All functions are for one thread, the host's.
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
  std::mutex mutex_;  // of everything below
  // Few are waited for at once, and who waits is woken for that alone: a step costs no switch to the host's
  // thread.
  std::condition_variable event_, idle_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::int64_t unfinished_ = 0;  // entries of all streams
  EventId next_event_ = 0;
  std::set<EventId> pending_events_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

}  // namespace cp::runtime
