// Memory of the GPU that NCCL can register.
#pragma once

#include "runtime/cuda/cuda_memory.h"

namespace cp::runtime {

// ncclMemAlloc. Inside of a node a registration has no effect on other memory (NCCL 2.28: its pages are
// mapped by ranks in place only if they are such as it makes itself).
CudaAllocator nccl_allocator();

}  // namespace cp::runtime
