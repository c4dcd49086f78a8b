#include "shared/base/text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "shared/base/error.h"

namespace cp {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c == separator && depth == 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::int64_t parse_int(std::string_view text, std::string_view what) {
  std::string_view digits = trim(text);
  std::int64_t scale = 1;
  std::string_view prefixed = digits;
  if (prefixed.ends_with('i')) prefixed.remove_suffix(1);
  constexpr std::string_view kPrefixes = "KMGkmg";
  const std::size_t prefix = prefixed.empty() ? std::string_view::npos : kPrefixes.find(prefixed.back());
  if (prefix != std::string_view::npos) {
    scale = std::int64_t{1} << (10 * (prefix % 3 + 1));
    digits = prefixed.substr(0, prefixed.size() - 1);
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range ||
      (error == std::errc() && (value > std::numeric_limits<std::int64_t>::max() / scale ||
                                value < std::numeric_limits<std::int64_t>::min() / scale))) {
    throw InvalidInput(str(what, " '", text, "' does not fit into 64 bits; the largest number is ",
                           std::numeric_limits<std::int64_t>::max()));
  }
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw InvalidInput(
        str(what, " '", text,
            "' is not a whole number; write, for example, 8, 4Ki or 128K (K is 1024, M 1024 K)"));
  }
  return value * scale;
}

std::vector<std::int64_t> parse_ints(std::string_view text, char separator, std::string_view what) {
  std::vector<std::int64_t> values;
  for (const std::string_view part : split(text, separator)) values.push_back(parse_int(part, what));
  return values;
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.4g %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace cp
