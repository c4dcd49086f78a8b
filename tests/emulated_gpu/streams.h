// Streams of the emulated GPU: a FIFO of work each, which a thread of its own runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace cp::emulated {

class Capture;

// A point of a stream's work that others wait for.
class Record {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void complete();
  bool done() const;
  void wait() const;
  Time time() const;  // of completion; done

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  Time time_ = {};
};

class Stream {
 public:
  using Work = std::function<void()>;

  // `run` runs each work, on the stream's thread, and throws nothing; it drops what is not `vital` when the
  // device has failed.
  using Run = std::function<void(const Work&, bool vital)>;
  Stream(int device, unsigned flags, int priority, Run run);
  ~Stream();  // waits for the work
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }

  // Not null while what the stream is given becomes part of a graph (capture.h).
  std::shared_ptr<Capture> capture() const;
  void set_capture(std::shared_ptr<Capture> capture);

  void push(Work work, bool vital = false);
  std::shared_ptr<Record> record();                     // of what was pushed so far
  void wait_for(std::shared_ptr<const Record> record);  // what is pushed from now on starts after it
  bool idle() const;
  void finish();  // blocks until all that was pushed so far has run

 private:
  struct Entry {
    Work work;
    std::shared_ptr<const Record> awaits;
    std::shared_ptr<Record> completes;
    bool vital = false;
  };
  void push(Entry entry);
  void run_entries();

  const int device_;
  const unsigned flags_;
  const int priority_;
  const Run run_;
  mutable std::mutex mutex_;
  std::condition_variable has_entries_;
  std::deque<Entry> entries_;
  bool running_ = false, closing_ = false;
  std::shared_ptr<Capture> capture_;
  std::thread thread_;  // last: it uses the above
};

}  // namespace cp::emulated
