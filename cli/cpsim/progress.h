// Progress: one line on the terminal for commands that take longer than a second.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace cp::cli {

// Shows what happens, and for how long it has, on standard error; nothing where that is no terminal, and
// nothing in the first second. The line is wiped when the object ends, so that results stand alone.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What happens now: "running", "checked 120,000 of 450,000 pairs". Cheap: drawing is a thread's business.
  void show(std::string what);

 private:
  void draw_until_stopped();

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::string what_;
  bool stopped_ = false;
  std::thread thread_;  // none where nothing is shown
};

}  // namespace cp::cli
