// The host kernels, which the fabric and Gloo share.
//
// Arithmetic on f16 and bf16 happens in f32 and is rounded once, to nearest even. Integer arithmetic wraps.
// Casts to integers round to nearest even; a value that does not fit becomes the nearest limit, and a NaN
// becomes 0. A NaN wins every min and max. Scale and attention are defined for floating types only. Sums run
// in ascending order, so that equal inputs give equal bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/kernels/float16.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// Throws InvalidInput for an operation that host_target() lacks.
void run_kernel(const Kernel& kernel, const HostMemory& memory, std::int64_t iteration);

// out[i] = in[0][i] op in[1][i] op ... in this order, for `numel` contiguous elements; for avg the sum is
// divided by the number of inputs at the end. 16-bit types accumulate in f32 and round once. `out` may be one
// of the inputs.
void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::byte* out,
            std::int64_t numel);

// Element access for tests, digests and fills: conversions between a dtype's storage and double.
double load_element(DType dtype, const std::byte* data, std::int64_t index);
void store_element(DType dtype, std::byte* data, std::int64_t index, double value);
// The same for whole lists.
std::vector<std::byte> encode(DType dtype, const std::vector<double>& values);
std::vector<double> decode(DType dtype, std::span<const std::byte> bytes);

}  // namespace cp
