#include "sim/scenario/values.h"

#include <cmath>
#include <cstdlib>

namespace cp::sim {

double parse_real(std::string_view flag, std::string_view text) {
  const std::string copy(trim(text));
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0' || !std::isfinite(value)) {
    throw InvalidInput(str(flag, " ", text, " is not a number; write, for example, 1.5"));
  }
  return value;
}

std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t least,
                         std::int64_t most) {
  const std::int64_t value = value_of(flag, text, [&] { return parse_int(text, "value"); });
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
  const std::string_view number = trim(text);
  const std::string_view digits = number.ends_with('B') ? number.substr(0, number.size() - 1) : number;
  const std::int64_t bytes =
      value_of(flag, text, [&] { return parse_int(digits, "size (such as 4096, 16MiB or 1GiB)"); });
  if (bytes >= 1) return bytes;
  throw InvalidInput(str(flag, " ", text, " is out of range; use a size such as 4096, 16MiB or 1GiB"));
}

}  // namespace cp::sim
