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

HostMemory::HostMemory(const Plan& plan, const Bindings& bindings, std::optional<HostMemory> before)
    : HostMemory(plan, bindings, before ? std::move(before->arena_) : nullptr,
                 before ? std::move(before->owned_) : std::vector<Owned>{}) {}

HostMemory::HostMemory(const Plan& plan, const Bindings& bindings, std::shared_ptr<HostArena> shared)
    : HostMemory(plan, bindings, std::move(shared), {}) {}

HostMemory::HostMemory(const Plan& plan, const Bindings& bindings, std::shared_ptr<HostArena> arena,
                       std::vector<Owned> before) {
  const std::vector<std::byte*> bound = bound_addresses(plan, bindings);
  std::vector<std::int64_t> missing;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (plan.buffers[i].kind != BufferKind::temporary && bound[i] == nullptr)
      missing.push_back(plan.buffers[i].bytes());
  }
  if (arena != nullptr && arena->size_bytes < plan.arena_bytes) arena.reset();
  take_owned(missing, std::move(before));
  arena_ = arena != nullptr
               ? std::move(arena)
               : std::make_shared<HostArena>(HostArena{allocate(plan.arena_bytes), plan.arena_bytes});
  std::size_t next_owned = 0;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    Place& place = places_.emplace_back(Place{bound[i], buffer.bytes(), buffer.dtype});
    if (buffer.kind != BufferKind::temporary && place.data == nullptr)
      place.data = owned_[next_owned++].bytes.get();
  }
  place_temporaries(plan);
}

HostMemory HostMemory::without_addresses(const Plan& plan) {
  HostMemory memory;
  for (const Buffer& buffer : plan.buffers) memory.places_.push_back({nullptr, buffer.bytes(), buffer.dtype});
  return memory;
}

void HostMemory::take_owned(const std::vector<std::int64_t>& sizes, std::vector<Owned> before) {
  for (const std::int64_t size_bytes : sizes) {
    Owned& owned = owned_.emplace_back(Owned{nullptr, size_bytes});
    for (Owned& kept : before) {
      if (kept.bytes == nullptr || kept.size_bytes != size_bytes) continue;
      owned.bytes = std::move(kept.bytes);
      break;
    }
  }
  before.clear();
  for (Owned& owned : owned_) {
    if (owned.bytes == nullptr) owned.bytes = allocate(owned.size_bytes);
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

HostMemory HostMemory::with_same_addresses() const {
  HostMemory same;
  same.places_ = places_;
  return same;
}

void HostMemory::move_to(const Plan& plan, std::shared_ptr<HostArena> arena) {
  arena_ = std::move(arena);
  place_temporaries(plan);
}

void HostMemory::place_temporaries(const Plan& plan) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.kind == BufferKind::temporary) places_[i].data = arena_->bytes.get() + buffer.offset_bytes;
  }
}

void HostMemory::set_address(BufferId buffer, std::byte* data) {
  places_.at(static_cast<std::size_t>(buffer)).data = data;
}

std::span<std::byte> HostMemory::bytes(BufferId buffer) const {
  const Place& place = places_.at(static_cast<std::size_t>(buffer));
  return {place.data, static_cast<std::size_t>(place.size_bytes)};
}

}  // namespace cp
