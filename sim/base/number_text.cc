#include "sim/base/number_text.h"

#include <cmath>
#include <cstddef>

#include <fmt/format.h>

namespace cp::sim {

namespace {
constexpr double kRounded = 999.5;         // three digits make it the next unit
constexpr std::int64_t kHours = 2 * 3600;  // from here on in hours
// Beyond, a double does not hold every second, and at last no whole number does.
constexpr double kMostWholeSeconds = 1e15;
constexpr double kMinutes = 120;  // seconds from which on minutes are said

// "1 min 49 s", "60 h 26 min".
std::string in_whole_units(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::round(seconds));
  if (whole >= kHours) return fmt::format("{} h {} min", (whole + 30) / 3600, (whole + 30) / 60 % 60);
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}
}  // namespace

std::string human_us(double time_us) {
  if (time_us < kRounded) return fmt::format("{:.3g} us", time_us);
  if (time_us < kRounded * 1e3) return fmt::format("{:.3g} ms", time_us / 1e3);
  return human_seconds(time_us / 1e6);
}

std::string human_seconds(double seconds) {
  if (seconds < kRounded / 1e3) return human_us(seconds * 1e6);
  if (seconds < kMinutes || seconds >= kMostWholeSeconds) return fmt::format("{:.3g} s", seconds);
  return in_whole_units(seconds);
}

std::string human_interval(double low_us, double high_us) {
  // Seconds become minutes within some intervals; no other border between units changes how a number reads.
  const double low_s = low_us / 1e6, high_s = high_us / 1e6;
  const bool in_minutes = high_s >= kMinutes && high_s < kMostWholeSeconds && low_s >= 60;
  return fmt::format("{} to {}", in_minutes ? in_whole_units(low_s) : human_us(low_us), human_us(high_us));
}

TimeColumn::TimeColumn(double smallest_us) {
  if (smallest_us >= static_cast<double>(kHours) * 1e6) {
    unit_ = "h", us_ = 3600e6;
  } else if (smallest_us >= 1e6) {
    unit_ = "s", us_ = 1e6;
  } else if (smallest_us >= 1e3) {
    unit_ = "ms", us_ = 1e3;
  } else {
    unit_ = "us", us_ = 1;
  }
  const double value = smallest_us / us_;
  decimals_ = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

std::string TimeColumn::head(std::string_view title) const { return fmt::format("{}, {}", title, unit_); }

std::string TimeColumn::of(double time_us) const { return fmt::format("{:.{}f}", time_us / us_, decimals_); }

std::string human_count(std::int64_t number) {
  const std::string digits = fmt::format("{}", number);
  const std::size_t first = number < 0 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string human_percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string human_rate(double per_second) {
  return per_second < 99.5 ? fmt::format("{:.3g}", per_second) : human_count(std::llround(per_second));
}

}  // namespace cp::sim
