// The kernels on the host, shared by the fabric and by Gloo.
//
// All arithmetic on f16 and bf16 happens in f32 and is rounded once, to nearest even. Integer arithmetic wraps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/dtype.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

void run_kernel(const Kernel& kernel, const HostMemory& memory, std::int64_t iteration);

// out[i] = in[0][i] op in[1][i] op ... in this order, for `numel` contiguous elements; for avg the sum is divided by the number
// of inputs at the end. 16-bit types accumulate in f32 and round once. `out` may be one of the inputs.
void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::byte* out, std::int64_t numel);

// Element access for tests, digests and fills: conversions between a dtype's storage and double.
double load_element(DType dtype, const std::byte* data, std::int64_t index);
void store_element(DType dtype, std::byte* data, std::int64_t index, double value);

float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);
float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);

}  // namespace cp
