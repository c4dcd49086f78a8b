// Numbers as people read them. Bytes: human_bytes() of shared/base/text.h.
#pragma once

#include <cstdint>
#include <string>

namespace cp::sim {

inline constexpr double kGiB = 1024.0 * 1024 * 1024;  // bytes

std::string human_us(double time_us);  // "0 us", "12.3 us", "1.23 ms", "4.56 s"
// The same from seconds; from two minutes on "2 min 5 s", from two hours on "60 h 26 min".
std::string human_seconds(double seconds);
std::string human_count(std::int64_t number);  // "1,234,567"
std::string human_percent(double share);       // "12.3 %"
std::string human_rate(double per_second);     // "12.3", "1,235": three digits at least

}  // namespace cp::sim
