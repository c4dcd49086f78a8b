// What every device asks of a plan's buffers and of what it is given, so that all of them say it alike.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/target.h"

namespace cp {

// The address that each buffer is bound to, by BufferId; nullptr for those that are not. Throws InvalidInput for a binding of no
// buffer, of a temporary, of another size than the buffer's or a second one, and for a temporary that lies outside of the arena.
std::vector<std::byte*> bound_addresses(const Plan& plan, const Bindings& bindings);

// Throws InvalidInput unless the buffer is one of the caller's and has so many bytes; `what` is "upload" or "download".
void check_host_copy(const Plan& plan, std::string_view what, BufferId buffer, std::size_t host_bytes);

// Throws InvalidInput with the first step whose operation the target lacks; `device` is "gloo".
void refuse_unknown_operations(const Plan& plan, const Target& target, std::string_view device);

}  // namespace cp
