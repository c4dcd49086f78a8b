// Times as people and files of others write them.
#pragma once

#include <cstdint>
#include <string>

namespace cp {

// "2026-11-21T22:30:05Z"; also of times before 1970.
std::string utc_text(std::int64_t unix_ns);

}  // namespace cp
