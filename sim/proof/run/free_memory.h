// Says how much memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>

namespace cp::sim {

// In bytes, the smaller of what the machine has available and what the process's control group leaves. Cached
// files count as available. Returns nothing if the system does not say, as anything but Linux.
std::optional<std::int64_t> free_memory_bytes();

}  // namespace cp::sim
