// The checks that every device makes of a plan and of the buffers that it is given, written once so that all
// devices refuse in the same words.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp {

// Throws InvalidInput if the binding is of no buffer or of a temporary, or has another size than the buffer.
void check_binding(const Plan& plan, const Binding& binding);

// The address that each buffer is bound to, by BufferId; nullptr for a buffer without a binding. Throws
// InvalidInput if a binding is of no buffer or of a temporary, has another size than the buffer, or is a
// second one for the same buffer; and if a temporary reaches out of the arena.
std::vector<std::byte*> bound_addresses(const Plan& plan, const Bindings& bindings);

// Throws InvalidInput unless the buffer is one of the caller's and has `host_bytes` bytes. `what` is "upload"
// or "download".
void check_host_copy(const Plan& plan, std::string_view what, BufferId buffer, std::size_t host_bytes);

// Throws InvalidInput unless `caller` is nullptr: the device, called `name`, has no streams of its caller's.
void refuse_callers_stream(CallerStream caller, const Device& device, std::string_view name);

// Throws InvalidInput if the device cannot run the plan: it is another rank's, or has an operation or a type
// that the device's target lacks. The message names the first of these, and what there is. `name` is that of
// the device, such as "gloo". Devices begin prepare() with this call.
void refuse_foreign_plan(const Plan& plan, const Device& device, std::string_view name);

}  // namespace cp
