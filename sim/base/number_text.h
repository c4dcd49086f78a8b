// Numbers as people read them. Bytes: human_bytes() of shared/base/text.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cp::sim {

inline constexpr double kGiB = 1024.0 * 1024 * 1024;  // bytes

// ---- durations ----
//
// The rule of all screens, tables and messages, so that one kind of thing has one form:
//   - A duration among words, or in a column whose rows differ in kind or by powers of ten, carries its unit:
//     human_us(), and human_seconds() of what is kept in seconds. Three digits of us, ms or s; from two
//     minutes on whole ones, "2 min 5 s", and from two hours on "60 h 26 min".
//   - The two ends of an interval have one form, that of the longer one: human_interval().
//   - A column of one kind of thing has one unit, which its head names: "step, s" (TimeColumn).
//   - What a program reads has one unit, which its key names: JSON and CSV hold step_us. What a person may
//     type again has the unit of the flag.
// time() of page/base.js does the same on the page.
std::string human_us(double time_us);  // "0 us", "12.3 us", "1.23 ms", "4.56 s"
std::string human_seconds(double seconds);
std::string human_interval(double low_us, double high_us);  // "1 min 49 s to 3 min 22 s"

// One unit for a whole column, in which its smallest time has three digits: us, ms, s, and from two hours on
// h.
class TimeColumn {
 public:
  explicit TimeColumn(double smallest_us);
  std::string head(std::string_view title) const;  // "step, s"
  std::string of(double time_us) const;            // "156"
  const char* unit() const { return unit_; }

 private:
  const char* unit_;
  double us_;
  int decimals_;
};

// ---- other numbers ----

std::string human_count(std::int64_t number);  // "1,234,567"
std::string human_percent(double share);       // "12.3 %"
std::string human_rate(double per_second);     // "12.3", "1,235": three digits at least

}  // namespace cp::sim
