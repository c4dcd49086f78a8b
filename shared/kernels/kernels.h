// The host kernels one by one; run_kernel() of host_kernels.h chooses among them. The views must be valid
// (validate_step) and lie in `memory`; they are taken in the given iteration of their Repeat.
#pragma once

#include <cstdint>

#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

void run(const Copy& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const Cast& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const Fill& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const Accumulate& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const Scale& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const MatMul& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const AttentionForward& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const AttentionBackward& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const AttentionDelta& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const AttentionSinkGradient& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const AttentionMerge& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const RecurrenceForward& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const RecurrenceSummary& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const RecurrenceSummaryGradient& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const RecurrenceJoin& kernel, const HostMemory& memory, std::int64_t iteration);
void run(const RecurrenceBackward& kernel, const HostMemory& memory, std::int64_t iteration);

}  // namespace cp
