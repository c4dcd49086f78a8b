// The host kernels of RowKernels' operations; run() chooses among them. row_operations.h is their definition.
// The views must be valid, as for kernels.h.
#pragma once

#include <cstdint>

#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// Throws InvalidInput for a kernel that has shapes only.
void run(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);

void rms_norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void rms_norm_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void norm_sums(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);  // and backward
void rotary(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);     // and backward
void gated_activation(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void gated_activation_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void output_gate(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void output_gate_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void add_bias(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);  // and backward
void group_bias(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void group_bias_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void embed(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void embed_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void cross_entropy(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void cross_entropy_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void route(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void route_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void dispatch(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void combine(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void short_convolution(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void short_convolution_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void decay_and_beta(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void decay_and_beta_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void gated_norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void gated_norm_backward(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void squared_norm(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);
void optimizer(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration);

}  // namespace cp
