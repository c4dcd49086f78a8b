// Small text helpers: building messages, joining, splitting and parsing numbers.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace cp {

// Concatenates the values as `<<` prints them: str("tp=", 8).
template <class... Values>
std::string str(const Values&... values) {
  std::ostringstream out;
  (out << ... << values);
  return out.str();
}

// join({1, 2, 3}, "x") is "1x2x3"; works for anything that `<<` prints.
template <class Range>
std::string join(const Range& values, std::string_view separator = ",") {
  std::ostringstream out;
  bool first = true;
  for (const auto& value : values) {
    if (!first) out << separator;
    first = false;
    out << value;
  }
  return out.str();
}

// Splits at each separator outside parentheses and brackets: split("S(0,sizes:1/2),R", ',') has two parts.
// An empty text has no parts.
std::vector<std::string_view> split(std::string_view text, char separator);

std::string_view trim(std::string_view text);

// Parses a whole decimal number, or such as 4K and 4Ki: 4 * 1024 (K, M, G). Throws InvalidInput that names `what` and quotes the text.
std::int64_t parse_int(std::string_view text, std::string_view what);

// "1024x1024x256" → {1024, 1024, 256}. Throws InvalidInput.
std::vector<std::int64_t> parse_ints(std::string_view text, char separator, std::string_view what);

// 1536 → "1.5 KiB".
std::string human_bytes(std::int64_t bytes);

}  // namespace cp
