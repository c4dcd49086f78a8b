// Shows the progress of commands that take long: as one line on a terminal, or in a log now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace cp::cli {

// Shows on standard error what happens, and how long it has taken so far.
//
// On a terminal this is one line, which appears after the first second and is wiped when the object ends, so
// that the results stand alone. Elsewhere a line is written every 30 seconds if `logs` is true. A command
// that forks must not ask for logs, since the thread that writes them does not live on in a child.
class Progress {
 public:
  explicit Progress(bool logs = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Sets what happens now: "running", "checked 120,000 of 450,000 pairs". Any thread may call it. It is
  // cheap: a thread of this object draws the line.
  void show(std::string what);

 private:
  void draw_until_stopped();
  void log_until_stopped();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // protects what_ and stopped_
  std::condition_variable wake_;
  std::string what_;
  bool stopped_ = false;
  std::thread thread_;  // not started if nothing is shown
};

}  // namespace cp::cli
