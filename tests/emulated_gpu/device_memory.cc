#include "tests/emulated_gpu/device_memory.h"

#include <cstdlib>
#include <iterator>
#include <mutex>

#include "shared/base/text.h"

namespace cp::emulated {
namespace {

constexpr std::size_t kAlignment = 256;  // of cudaMalloc

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

std::string text_of(const Allocation& allocation) {
  return str(allocation.size, " bytes of ",
             allocation.device < 0 ? std::string("pinned host memory") : str("GPU ", allocation.device));
}

}  // namespace

DeviceMemory& device_memory() {
  static auto& memory = *new DeviceMemory;  // streams use it until the process ends
  return memory;
}

std::size_t DeviceMemory::limit() const {
  const std::shared_lock lock(mutex_);
  if (limit_) return *limit_;
  const char* bytes = std::getenv("CP_EMULATED_GPU_MEMORY");
  return bytes != nullptr ? std::strtoull(bytes, nullptr, 10) : std::size_t{16} << 30;
}

void DeviceMemory::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

std::size_t DeviceMemory::used(int device) const {
  const std::shared_lock lock(mutex_);
  const auto found = used_.find(device);
  return found == used_.end() ? 0 : found->second;
}

void* DeviceMemory::allocate(std::size_t size, int device) {
  const std::size_t most = limit();
  const std::lock_guard lock(mutex_);
  if (device >= 0 && (size > most || used_[device] > most - size)) return nullptr;
  void* data = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (data == nullptr) return nullptr;
  allocations_[address(data)] = {address(data), size, device, true};
  used_[device] += size;
  return data;
}

void DeviceMemory::add_registered(void* data, std::size_t size) {
  const std::lock_guard lock(mutex_);
  allocations_[address(data)] = {address(data), size, -1, false};
}

bool DeviceMemory::free(void* data, bool on_device) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address(data));
    if (found == allocations_.end() || (found->second.device >= 0) != on_device || !found->second.owned)
      return false;
    used_[found->second.device] -= found->second.size;
    allocations_.erase(found);
  }
  std::free(data);
  return true;
}

bool DeviceMemory::remove_registered(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address(data));
  if (found == allocations_.end() || found->second.owned) return false;
  allocations_.erase(found);
  return true;
}

const Allocation* DeviceMemory::find_locked(const void* data) const {
  auto next = allocations_.upper_bound(address(data));
  if (next == allocations_.begin()) return nullptr;
  const Allocation& allocation = std::prev(next)->second;
  return address(data) - allocation.begin < allocation.size ? &allocation : nullptr;
}

std::optional<Allocation> DeviceMemory::find(const void* data) const {
  const std::shared_lock lock(mutex_);
  const Allocation* found = find_locked(data);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

std::optional<std::string> DeviceMemory::refuse(const void* data, std::size_t size) const {
  if (size == 0) return std::nullopt;
  const std::shared_lock lock(mutex_);
  const Allocation* found = find_locked(data);
  if (found == nullptr || found->device < 0)
    return str(size, " bytes at ", data, " are no memory of a GPU (never allocated there, or freed)");
  const std::size_t offset = address(data) - found->begin;
  if (size > found->size - offset) return str(size, " bytes from byte ", offset, " of ", text_of(*found));
  return std::nullopt;
}

std::optional<std::string> DeviceMemory::refuse_host(const void* data, std::size_t size) const {
  if (size == 0) return std::nullopt;
  if (data == nullptr) return str(size, " bytes at a null pointer");
  const std::shared_lock lock(mutex_);
  const Allocation* found = find_locked(data);
  if (found == nullptr) return std::nullopt;
  if (found->device >= 0) return str(size, " bytes at ", data, " are no host memory but ", text_of(*found));
  const std::size_t offset = address(data) - found->begin;
  if (size > found->size - offset) return str(size, " bytes from byte ", offset, " of ", text_of(*found));
  return std::nullopt;
}

}  // namespace cp::emulated
