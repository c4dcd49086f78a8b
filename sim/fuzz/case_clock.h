// CaseClock tells whether a case takes too long, however busy the machine is with other things.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <sys/types.h>

namespace cp::sim {

// Watches a process that judges one case after the other. A case is over its limit if the process has used
// that much CPU time on it, or if its CPU time has not grown for that long on the clock. Time on the clock
// alone would not do: on a busy machine a process may wait for a core much longer than it works, but it gets
// a core again and again.

class CaseClock {
 public:
  CaseClock(pid_t process, std::chrono::seconds limit) : process_(process), limit_(limit) { begin(); }

  void begin();    // call it when a case begins
  bool is_over();  // call it a few times a second; false once the process has ended

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<std::chrono::nanoseconds> worked() const;  // its CPU time; nothing once it has ended

  pid_t process_;
  std::chrono::seconds limit_;
  std::chrono::nanoseconds at_begin_{0}, last_{0};  // CPU time when the case began, and when last asked
  Clock::time_point moved_;                         // when `last_` was seen to grow
};

}  // namespace cp::sim
