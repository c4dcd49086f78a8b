// Reads the values of flags and scenario fields, so that errors name the flag, quote the text and say what
// would work. All functions throw InvalidInput.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/plan/target.h"

namespace cp::sim {

// Returns what make() returns. The library knows nothing of flags, so its InvalidInput is changed to one that
// begins with the flag and its text. If the error already begins with the text, the text is not repeated:
// "--model m.json:2:1: not JSON".
template <class Make>
decltype(auto) value_of(std::string_view flag, std::string_view text, const Make& make) {
  try {
    return make();
  } catch (const InvalidInput& error) {
    const std::string_view message = error.what();
    const bool named =
        !text.empty() && message.starts_with(text) && message.substr(text.size()).starts_with(':');
    throw InvalidInput(named ? str(flag, " ", message) : str(flag, " ", text, ": ", message));
  }
}

// Turns what programming languages take for a number into plain digits: "1_000" becomes "1000", and "1e6"
// becomes "1000000". Any other text stays as it is.
std::string plain_digits(std::string_view text);

double parse_real(std::string_view flag, std::string_view text);  // finite
// Reads "8", "4Ki", "1_000" or "1e6"; the number must be from `least` to `most`.
std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t least,
                         std::int64_t most = std::numeric_limits<std::int64_t>::max());

// Returns the target of that name, or `device` if the text is empty.
const Target& target_of(std::string_view text, const Target& device);

// Reads a number of bytes, of 1 or more. "4096", "16Mi", "1GiB" and, as nccl-tests counts, "1G" are powers of
// 1024. With a B, "1GB" and "1.5MB" are powers of 1000, as in the GB/s of a link.
std::int64_t parse_bytes(std::string_view flag, std::string_view text);

// Reads a number of GiB. "72" and "1.5" count GiB; "72GiB", "77GB" and other sizes are read as parse_bytes()
// does.
double parse_gib(std::string_view flag, std::string_view text);

// Reads a number of milliseconds. "20000" counts milliseconds; "20s", "1.5min", "20000ms" and "500us" say
// what they count.
double parse_ms(std::string_view flag, std::string_view text);

}  // namespace cp::sim
