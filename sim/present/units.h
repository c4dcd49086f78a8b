// Numbers as people read them. Bytes: human_bytes() of shared/base/text.h.
#pragma once

#include <cstdint>
#include <string>

namespace cp::sim {

std::string human_us(double time_us);          // "0 us", "12.3 us", "1.23 ms", "4.56 s"
std::string human_seconds(double seconds);     // the same from seconds; from two minutes on "2 min 5 s", from two hours on "60 h 26 min"
std::string human_count(std::int64_t number);  // "1,234,567"

}  // namespace cp::sim
