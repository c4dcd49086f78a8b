// Positions are signed in this project, as extents and ranks are; containers want them unsigned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cp {

// `value` is not negative.
inline std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace cp
