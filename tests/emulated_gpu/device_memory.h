// What is allocated on the emulated GPUs and as pinned host memory, so that copies can be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <string>

namespace cp::emulated {

struct Allocation {
  std::uintptr_t begin = 0;
  std::size_t size = 0;
  int device = -1;    // -1: pinned host memory
  bool owned = true;  // false: host memory of the caller that was registered
};

class DeviceMemory {
 public:
  // Null where the device (>= 0) has less left than `size`.
  void* allocate(std::size_t size, int device);
  void add_registered(void* data, std::size_t size);
  // False where nothing of that kind was allocated at the address.
  bool free(void* data, bool on_device);
  bool remove_registered(void* data);

  std::optional<Allocation> find(const void* data) const;
  // Why `size` bytes at the address are not memory of a GPU; nothing where they are.
  std::optional<std::string> refuse(const void* data, std::size_t size) const;
  // As above, of host memory: inside of one pinned allocation, or outside of all.
  std::optional<std::string> refuse_host(const void* data, std::size_t size) const;

  std::size_t used(int device) const;
  std::size_t limit() const;  // of each device: CP_EMULATED_GPU_MEMORY in bytes, or 16 GiB
  void set_limit(std::size_t bytes);

 private:
  const Allocation* find_locked(const void* data) const;

  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, Allocation> allocations_;  // by begin
  std::map<int, std::size_t> used_;
  std::optional<std::size_t> limit_;
};

DeviceMemory& device_memory();  // of this process

}  // namespace cp::emulated
