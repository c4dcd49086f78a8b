// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <optional>

namespace cp::sim {

// The smaller of what the machine has available and what the process's control group leaves, in bytes;
// nothing where the system does not say (anything but Linux).
std::optional<std::int64_t> free_memory_bytes();

}  // namespace cp::sim
