// Small text helpers: building messages, joining, splitting and parsing numbers.
#pragma once

#include <charconv>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cp {

// Appends the value as `<<` prints it. Strings, characters and numbers, of which most messages are made, go
// without a stream, since making one takes longer than all the rest.
template <class Value>
void append(std::string& out, const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
    out += std::string_view(value);
  } else if constexpr (std::is_same_v<Value, char>) {
    out += value;
  } else if constexpr (std::is_floating_point_v<Value> || (std::is_integral_v<Value> && sizeof(Value) > 1)) {
    char text[32];  // the longest is a long double with six digits: -1.23457e-4951
    const std::to_chars_result end = [&] {
      if constexpr (std::is_floating_point_v<Value>)
        return std::to_chars(text, text + sizeof(text), value, std::chars_format::general, 6);
      else
        return std::to_chars(text, text + sizeof(text), value);
    }();
    out.append(text, end.ptr);
  } else {
    std::ostringstream stream;
    stream << value;
    out += stream.view();
  }
}

// Concatenates the values as `<<` prints them: str("tp=", 8).
template <class... Values>
std::string str(const Values&... values) {
  std::string out;
  (append(out, values), ...);
  return out;
}

// join({1, 2, 3}, "x") is "1x2x3"; works for anything that `<<` prints.
template <class Range>
std::string join(const Range& values, std::string_view separator = ",") {
  std::string out;
  bool first = true;
  for (const auto& value : values) {
    if (!first) out += separator;
    first = false;
    append(out, value);
  }
  return out;
}

// Splits at each separator outside parentheses and brackets: split("S(0,sizes:1/2),R", ',') has two parts.
// An empty text has no parts.
std::vector<std::string_view> split(std::string_view text, char separator);

std::string_view trim(std::string_view text);

// Parses a whole decimal number. A suffix K, M or G multiplies it: both 4K and 4Ki are 4 * 1024. Throws
// InvalidInput that names `what` and quotes the text.
std::int64_t parse_int(std::string_view text, std::string_view what);

// "1024x1024x256" → {1024, 1024, 256}. Throws InvalidInput.
std::vector<std::int64_t> parse_ints(std::string_view text, char separator, std::string_view what);

// 1536 → "1.5 KiB".
std::string human_bytes(std::int64_t bytes);

}  // namespace cp
