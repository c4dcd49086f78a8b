// Reading the values of flags and scenario fields, so that errors name the flag, quote the text and say what would work.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/plan/target.h"

namespace cp::sim {

// What make() returns; an InvalidInput of the library, which knows nothing of flags, becomes one that begins
// with the flag and its text.
template <class Make>
decltype(auto) value_of(std::string_view flag, std::string_view text, const Make& make) {
  try {
    return make();
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(flag, " ", text, ": ", error.what()));
  }
}

double parse_real(std::string_view flag, std::string_view text);  // finite
std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t least,
                         std::int64_t most = std::numeric_limits<std::int64_t>::max());  // "8", "4Ki"

// The target of that name; `device` where the text is empty.
const Target& target_of(std::string_view text, const Target& device);

std::int64_t parse_bytes(std::string_view flag, std::string_view text);  // "4096", "1GiB", "16Mi"

}  // namespace cp::sim
