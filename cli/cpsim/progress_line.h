// Progress of commands that take long: one line on the terminal, or in a log now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace cp::cli {

// Shows what happens, and for how long it has, on standard error: after the first second, on a line that is
// wiped when the object ends, so that results stand alone. Where that is no terminal, a line every 30 seconds
// if `logs`: not of commands that fork, since a thread does not live on in a child.
class Progress {
 public:
  explicit Progress(bool logs = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What happens now: "running", "checked 120,000 of 450,000 pairs". Cheap: drawing is a thread's business.
  void show(std::string what);

 private:
  void draw_until_stopped();
  void log_until_stopped();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::string what_;
  bool stopped_ = false;
  std::thread thread_;  // none where nothing is shown
};

}  // namespace cp::cli
