// Times as people and the files of other programs write them.
#pragma once

#include <cstdint>
#include <string>

namespace cp {

// "2026-11-21T22:30:05Z". Times before 1970 (negative) work, too.
std::string utc_text(std::int64_t unix_ns);

}  // namespace cp
