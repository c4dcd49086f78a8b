// The arithmetic of the emulated NCCL: that of the host kernels, in order of rank.
#pragma once

#include <cstddef>
#include <vector>

#include <nccl.h>

namespace cp::emulated {

// Whether the project has such reductions; NCCL has more.
bool can_reduce(ncclRedOp_t op, ncclDataType_t type);
// out[i] = inputs[0][i] op inputs[1][i] op ...; `out` may be one of the inputs.
void reduce_elements(ncclRedOp_t op, ncclDataType_t type, const std::vector<const std::byte*>& inputs,
                     std::byte* out, std::size_t count);

}  // namespace cp::emulated
