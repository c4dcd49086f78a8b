// Converts a signed position, as this project uses them, to the unsigned index that containers want.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cp {

// `value` must not be negative.
inline std::size_t idx(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace cp
