// Whether a case takes too long, whatever else the machine does meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <sys/types.h>

namespace cp::sim {

// Of a process that judges one case after the other. A case is over its limit when the process has worked for
// so long on it, or has stood still for so long: on a busy machine a process may wait for a core much longer
// than it works, and gets some time again and again.
class CaseClock {
 public:
  CaseClock(pid_t process, std::chrono::seconds limit) : process_(process), limit_(limit) { begin(); }

  void begin();    // of a case
  bool is_over();  // asked a few times a second

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<std::chrono::nanoseconds> worked() const;  // nothing once the process has ended

  pid_t process_;
  std::chrono::seconds limit_;
  std::chrono::nanoseconds at_begin_{0}, last_{0};
  Clock::time_point moved_;  // when `last_` was seen to grow
};

}  // namespace cp::sim
