// DeviceMemory of a GPU: that of the thread that uses it.
#pragma once

#include <vector>

#include "runtime/cuda/host_copies.h"
#include "shared/plan/device_memory.h"

namespace cp::runtime {

class CudaDeviceMemory : public DeviceMemory {
 public:
  CudaDeviceMemory() = default;
  ~CudaDeviceMemory() override;
  CudaDeviceMemory(const CudaDeviceMemory&) = delete;
  CudaDeviceMemory& operator=(const CudaDeviceMemory&) = delete;

  void* allocate(std::int64_t bytes) override;
  void* allocate_on_host(std::int64_t bytes) override;
  void upload(void* to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, const void* from) override;
  void fill_with_zeros(void* to, std::int64_t bytes) override;

 private:
  HostCopies copies_;
  std::vector<void*> allocated_, on_host_;
};

}  // namespace cp::runtime
