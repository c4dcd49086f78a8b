#include "shared/base/utc.h"

#include <array>
#include <chrono>
#include <cstdio>

namespace cp {

std::string utc_text(std::int64_t unix_ns) {
  using namespace std::chrono;
  const sys_seconds time{floor<seconds>(nanoseconds(unix_ns))};
  const auto day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(time - day);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return text.data();
}

}  // namespace cp
