#include "runtime/cuda/cuda_device_memory.h"

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_memory.h"
#include "shared/base/error.h"

namespace cp::runtime {

CudaDeviceMemory::~CudaDeviceMemory() {
  for (void* data : allocated_) cuda_allocator().release(data);
  for (void* data : on_host_) pinned_allocator().release(data);
}

void* CudaDeviceMemory::allocate(std::int64_t bytes) {
  void* const data = cuda_allocator().allocate(static_cast<std::size_t>(bytes));
  if (data == nullptr) {
    std::size_t free = 0, all = 0;
    check_cuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    throw InvalidInput(str("the GPU has no room for ", bytes, " bytes more: ", free, " of ", all,
                           " are free; use a smaller model or batch, or shard it over more ranks"));
  }
  allocated_.push_back(data);
  return data;
}

void* CudaDeviceMemory::allocate_on_host(std::int64_t bytes) {
  void* const data = pinned_allocator().allocate(static_cast<std::size_t>(bytes));
  if (data == nullptr)
    throw InvalidInput(str("the host has no room for ", bytes, " bytes of pinned memory more (",
                           human_bytes(bytes), "); use fewer ranks on a host, or keep less there"));
  on_host_.push_back(data);
  return data;
}

void CudaDeviceMemory::upload(void* to, std::span<const std::byte> from) {
  copies_.upload(static_cast<std::byte*>(to), from);
}

void CudaDeviceMemory::download(std::span<std::byte> to, const void* from) {
  copies_.download(to, static_cast<const std::byte*>(from));
}

void CudaDeviceMemory::fill_with_zeros(void* to, std::int64_t bytes) {
  check_cuda(cudaMemset(to, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
  // Of the device's memory cudaMemset may return before it is done, and streams of the device do not wait.
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace cp::runtime
