#include "runtime/nccl/nccl_memory.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/nccl/nccl_error.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

// The size of the GPU's pages, 2 MiB, to which NCCL rounds up. It serves to tell why an allocation failed.
constexpr std::size_t kGranularity = std::size_t{2} << 20;

void* allocate(std::size_t size_bytes) {
  void* data = nullptr;
  const ncclResult_t result = ncclMemAlloc(&data, size_bytes);
  if (result == ncclSuccess) return data;
  cudaGetLastError();  // forgets the error, which the next launch would report again
  std::size_t free = 0, total = 0;
  CP_CUDA(cudaMemGetInfo(&free, &total));
  if (free < (size_bytes + kGranularity - 1) / kGranularity * kGranularity) return nullptr;
  throw_nccl(result, nullptr, str("ncclMemAlloc of ", size_bytes, " bytes"));
}

void release(void* data) { static_cast<void>(ncclMemFree(data)); }

}  // namespace

CudaAllocator nccl_allocator() { return {allocate, release}; }

}  // namespace cp::runtime
