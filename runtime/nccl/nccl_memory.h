// Allocates memory of the GPU that NCCL can register.
#pragma once

#include "runtime/cuda/cuda_memory.h"

namespace cp::runtime {

// An allocator that uses ncclMemAlloc. Inside a node a registration has an effect only on such memory,
// because ranks can map the pages of one another only if NCCL has made them (NCCL 2.28). Allocating returns
// null if the GPU has too little memory, and else throws as throw_nccl().
CudaAllocator nccl_allocator();

}  // namespace cp::runtime
