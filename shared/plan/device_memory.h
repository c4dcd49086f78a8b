// DeviceMemory: memory of a device for buffers of the caller that several plans share, where that memory is
// not the host's. A ProcessDevice makes one (runtime/process_device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cp {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // The address of so many bytes, for as long as this object lives. Throws InvalidInput if there is no room.
  virtual void* allocate(std::int64_t bytes) = 0;
  // The same of the host's memory, for buffers that lie on the host (host_place.h): where the device's copies
  // reach it. Whoever has the address reads and writes it as any other memory.
  virtual void* allocate_on_host(std::int64_t bytes) = 0;
  // These block until the bytes are there. Nothing on the device may use them meanwhile.
  virtual void upload(void* to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, const void* from) = 0;
  virtual void fill_with_zeros(void* to, std::int64_t bytes) = 0;
};

}  // namespace cp
