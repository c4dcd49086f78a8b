#include "shared/plan/host_memory.h"

#include <cstring>

#include "shared/plan/bindings.h"

namespace cp {
namespace {

std::unique_ptr<std::byte[]> allocate(std::int64_t size_bytes) {
  const auto size = static_cast<std::size_t>(size_bytes);
  auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
  std::memset(memory.get(), 0xFB, size);
  return memory;
}

}  // namespace

HostMemory::HostMemory(const Plan& plan, const Bindings& bindings) {
  const std::vector<std::byte*> bound = bound_addresses(plan, bindings);
  arena_ = allocate(plan.arena_bytes);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    Place& place = places_.emplace_back(Place{bound[i], buffer.bytes(), buffer.dtype});
    if (buffer.kind == BufferKind::temporary) {
      place.data = arena_.get() + buffer.offset_bytes;
    } else if (place.data == nullptr) {
      owned_.push_back(allocate(buffer.bytes()));
      place.data = owned_.back().get();
    }
  }
}

std::byte* HostMemory::at(const View& view, std::int64_t iteration) const {
  const Place& place = places_.at(static_cast<std::size_t>(view.buffer));
  if (view.numel() == 0) return place.data;  // an empty view may lie anywhere
  return place.data + offset_at(view, iteration) * cp::size_bytes(place.dtype);
}

DType HostMemory::dtype(const View& view) const {
  return places_.at(static_cast<std::size_t>(view.buffer)).dtype;
}

std::span<std::byte> HostMemory::bytes(BufferId buffer) const {
  const Place& place = places_.at(static_cast<std::size_t>(buffer));
  return {place.data, static_cast<std::size_t>(place.size_bytes)};
}

}  // namespace cp
