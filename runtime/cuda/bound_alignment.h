// Which addresses a caller may bind: the kernels of fused attention move 16 bytes at once, and refuse or
// fault at operands that begin elsewhere. So a binding is checked when it is made, while the caller is there,
// and not when the step runs and other ranks already wait.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Of what the address of each buffer must be a multiple, in bytes, by BufferId: kFusedAlignment if a fused
// step has a view of it, else 1. (Where in the buffer a view may begin is refuse_operand()'s to say.)
inline constexpr std::int64_t kFusedAlignment = 16;
std::vector<std::int64_t> bound_alignments(const Plan& plan);

// Throws InvalidInput with the buffer's name and address, and what helps, if the binding is of another
// address. `alignments` are those of the plan.
void check_alignment(const Plan& plan, const std::vector<std::int64_t>& alignments, const Binding& binding);

}  // namespace cp::runtime
