#include "sim/scenario/read_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

namespace cp::sim {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads the number before a unit; returns nothing if the text is no number.
std::optional<double> real_of(std::string_view text) {
  const std::string copy(trim(text));
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Reads the bytes of "1.5MB": a number and a decimal unit. Returns nothing if there is no such unit.
std::optional<double> decimal_bytes(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 6> kUnits = {
      {{"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"kb", 1e3}}};
  for (const auto& [unit, factor] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const auto number = real_of(text.substr(0, text.size() - unit.size()));
    if (number) return *number * factor;
  }
  return std::nullopt;
}

}  // namespace

std::string plain_digits(std::string_view text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (text[i] != '_' || !between) digits += text[i];
  }
  // 1e6: a few digits, an e, and how many zeros.
  const std::size_t e = digits.find_first_of("eE");
  if (e == std::string::npos || e == 0 ||
      !std::all_of(digits.begin(), digits.begin() + static_cast<std::ptrdiff_t>(e), is_digit))
    return digits;
  int zeros = 0;
  constexpr int kMostZeros = 18;  // 10^18 is the largest power of ten in 64 bits
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data() + e + 1, last, zeros);
  if (error != std::errc() || end != last || zeros < 0 || zeros > kMostZeros) return digits;
  return digits.substr(0, e) + std::string(static_cast<std::size_t>(zeros), '0');
}

double parse_real(std::string_view flag, std::string_view text) {
  const auto value = real_of(text);
  if (!value) throw InvalidInput(str(flag, " ", text, " is not a number; write, for example, 1.5"));
  return *value;
}

std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t least,
                         std::int64_t most) {
  const std::int64_t value = value_of(flag, text, [&] { return parse_int(plain_digits(text), "value"); });
  if (value >= least && value <= most) return value;
  const bool bounded = most != std::numeric_limits<std::int64_t>::max();
  throw InvalidInput(
      str(flag, " ", text, " is out of range; use ", least, bounded ? str(" to ", most) : " or more"));
}

const Target& target_of(std::string_view text, const Target& device) {
  if (text.empty()) return device;
  return value_of("--target", text, [&]() -> const Target& { return target_by_name(text); });
}

std::int64_t parse_bytes(std::string_view flag, std::string_view text) {
  // Chosen: half of what 64 bits hold, so that a rounded double still fits.
  constexpr double kMost = 0x1p62;
  const auto reject = [&](std::string_view why) -> std::int64_t {
    throw InvalidInput(str(flag, " ", text, " ", why, "; use, for example, 4096, 16MiB or 1GB (10^9)"));
  };
  const std::string number = plain_digits(trim(text));
  if (const auto bytes = decimal_bytes(number)) {
    if (*bytes < 1 || *bytes > kMost) return reject("is out of range");
    return *bytes == std::floor(*bytes) ? static_cast<std::int64_t>(*bytes)
                                        : reject("is no whole number of bytes");
  }
  const std::string digits = number.ends_with('B') ? number.substr(0, number.size() - 1) : number;
  const std::int64_t bytes = value_of(flag, text, [&] { return parse_int(digits, "size"); });
  return bytes >= 1 ? bytes : reject("is out of range");
}

double parse_gib(std::string_view flag, std::string_view text) {
  if (const auto gib = real_of(text)) return *gib;
  if (trim(text).find_first_of("0123456789") == 0)
    return static_cast<double>(parse_bytes(flag, text)) / 0x1p30;
  throw InvalidInput(str(flag, " ", text, " is not a number; write, for example, 72, 72GiB or 77GB"));
}

double parse_ms(std::string_view flag, std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 5> kUnits = {
      {{"ms", 1}, {"us", 1e-3}, {"min", 60e3}, {"s", 1e3}, {"m", 60e3}}};
  if (const auto ms = real_of(text)) return *ms;
  for (const auto& [unit, factor] : kUnits) {
    if (!trim(text).ends_with(unit)) continue;
    const auto number = real_of(trim(text).substr(0, trim(text).size() - unit.size()));
    if (number) return *number * factor;
  }
  throw InvalidInput(
      str(flag, " ", text, " is not a time; write, for example, 500 (ms), 500ms, 20s or 2min"));
}

}  // namespace cp::sim
