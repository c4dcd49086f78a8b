// A stop that work deep inside of others looks at: replays and searches many times a second, so that one
// Ctrl-C ends what would run for minutes. It need not pass through every argument list in between. Work of
// shared/ looks at it through at_work().
#pragma once

#include <atomic>

#include "shared/base/at_work.h"

namespace cp::sim {

// What is thrown where work stops. No std::exception, so that nobody takes it for an error of the work.
struct Stopped {};

// While one exists, look_at_stop() on this thread looks at its flag too; parallel_for() takes it to its
// threads. A null pointer leaves what there is.
class StopScope {
 public:
  explicit StopScope(const std::atomic<bool>* stop) : before_(current_), hook_before_(at_work_hook) {
    if (stop == nullptr) return;
    current_ = stop;
    at_work_hook = [] {
      if (current_->load(std::memory_order_relaxed)) throw Stopped{};
    };
  }
  ~StopScope() {
    current_ = before_;
    at_work_hook = hook_before_;
  }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  static const std::atomic<bool>* current() { return current_; }

 private:
  const std::atomic<bool>* before_;
  void (*hook_before_)();
  static inline thread_local const std::atomic<bool>* current_ = nullptr;
};

// Throws Stopped once the flag is set. A few instructions: for inner loops.
inline void look_at_stop() {
  const std::atomic<bool>* stop = StopScope::current();
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Stopped{};
}

}  // namespace cp::sim
