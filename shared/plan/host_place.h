// Buffers in the host's memory: an offloaded optimizer's, activations that wait there for their backward
// pass. They belong to the caller; a Copy between such a buffer and one on the GPU goes over PCIe, and a
// kernel all of whose operands are such runs on the host.
#pragma once

#include <string_view>

#include "shared/plan/plan.h"

namespace cp {

inline constexpr std::string_view kHostPrefix = "host/";  // of their names

inline bool lies_on_host(const Buffer& buffer) { return buffer.name.starts_with(kHostPrefix); }

}  // namespace cp
