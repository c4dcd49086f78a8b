// Says which buffers are in the host's memory, for example those of an offloaded optimizer, or activations
// that wait there for their backward pass. They belong to the caller. A Copy between such a buffer and one on
// the GPU goes over PCIe; a kernel of rows all of whose operands are such buffers runs on the host.
#pragma once

#include <cstdint>
#include <string_view>

#include "shared/plan/plan.h"

namespace cp {

inline constexpr std::string_view kHostPrefix = "host/";  // with which their names begin

inline bool lies_on_host(const Buffer& buffer) { return buffer.name.starts_with(kHostPrefix); }

// Where a kernel of the plan runs.
enum class KernelPlace : std::uint8_t { gpu, host_copy, host };
KernelPlace place_of(const Kernel& kernel, const Plan& plan);

}  // namespace cp
