#include "shared/plan/host_memory.h"

#include <cstring>

#include "shared/base/error.h"

namespace cp {
namespace {

std::unique_ptr<std::byte[]> allocate(std::int64_t size_bytes) {
  const auto size = static_cast<std::size_t>(size_bytes);
  auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
  std::memset(memory.get(), 0xFB, size);
  return memory;
}

}  // namespace

HostMemory::HostMemory(const Plan& plan, const Bindings& bindings)
    : arena_(allocate(plan.arena_bytes)), places_(plan.buffers.size()) {
  for (const Binding& binding : bindings) {
    if (binding.buffer < 0 || static_cast<std::size_t>(binding.buffer) >= plan.buffers.size()) {
      throw InvalidInput(
          str("binding for buffer ", binding.buffer, ", but the plan has ", plan.buffers.size(), " buffers"));
    }
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(binding.buffer)];
    Place& place = places_[static_cast<std::size_t>(binding.buffer)];
    if (buffer.kind == BufferKind::temporary) {
      throw InvalidInput(
          str("binding for temporary ", buffer.name, "; only inputs, outputs and inouts are bound"));
    }
    if (place.data != nullptr) throw InvalidInput(str("two bindings for buffer ", buffer.name));
    if (binding.size_bytes != buffer.bytes() || (binding.data == nullptr && binding.size_bytes != 0)) {
      throw InvalidInput(str("binding of ", binding.data == nullptr ? 0 : binding.size_bytes,
                             " bytes for buffer ", buffer.name, ", which has ", buffer.bytes(), " bytes (",
                             buffer.numel, " x ", name(buffer.dtype), ")"));
    }
    place.data = static_cast<std::byte*>(binding.data);
  }
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    Place& place = places_[i];
    place.size_bytes = buffer.bytes();
    place.dtype = buffer.dtype;
    if (buffer.kind == BufferKind::temporary) {
      if (buffer.offset_bytes < 0 || buffer.offset_bytes > plan.arena_bytes - buffer.bytes()) {
        throw InvalidInput(str("temporary ", buffer.name, " [", buffer.offset_bytes, ", ",
                               buffer.offset_bytes + buffer.bytes(), ") lies outside of the arena of ",
                               plan.arena_bytes, " bytes; PlanBuilder::build() places it"));
      }
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
