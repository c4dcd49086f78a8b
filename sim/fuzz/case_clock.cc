#include "sim/fuzz/case_clock.h"

#include <ctime>

namespace cp::sim {

std::optional<std::chrono::nanoseconds> CaseClock::worked() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return std::nullopt;
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void CaseClock::begin() {
  at_begin_ = last_ = worked().value_or(std::chrono::nanoseconds(0));
  moved_ = Clock::now();
}

bool CaseClock::is_over() {
  const auto now = worked();
  if (!now) return false;
  if (*now > last_) {
    last_ = *now;
    moved_ = Clock::now();
  }
  return last_ - at_begin_ >= limit_ || Clock::now() - moved_ >= limit_;
}

}  // namespace cp::sim
