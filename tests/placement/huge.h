// A length that no memory holds: what is computed of index sets must not depend on how many indices they
// have.
#pragma once

#include <cstdint>

namespace cp::testing {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

}  // namespace cp::testing
