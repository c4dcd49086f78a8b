// What every device asks of a plan, of its buffers and of what it is given, so that all of them say it alike.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp {

// The address that each buffer is bound to, by BufferId; nullptr for those that are not. Throws InvalidInput
// for a binding of no buffer, of a temporary, of another size than the buffer's or a second one, and for a
// temporary that lies outside of the arena.
std::vector<std::byte*> bound_addresses(const Plan& plan, const Bindings& bindings);

// Throws InvalidInput unless the buffer is one of the caller's and has so many bytes; `what` is "upload" or
// "download".
void check_host_copy(const Plan& plan, std::string_view what, BufferId buffer, std::size_t host_bytes);

// Throws InvalidInput for a plan that the device cannot run: one of another rank, and one with an operation
// or a type that the device's target lacks, of which it names the first, and what there is. `name` is the
// device's: "gloo". Devices begin prepare() with it.
void refuse_foreign_plan(const Plan& plan, const Device& device, std::string_view name);

}  // namespace cp
