#include "runtime/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <cuda_runtime_api.h>

#include "runtime/cuda/bound_alignment.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "shared/base/error.h"
#include "shared/plan/bindings.h"
#include "shared/plan/host_place.h"

namespace cp::runtime {
namespace {

struct Release {
  void (*release)(void*) = nullptr;
  void operator()(std::byte* data) const { release(data); }
};
using DeviceBytes = std::unique_ptr<std::byte[], Release>;

// What the plan needs of this device's memory, for messages.
struct Need {
  std::int64_t asked = 0;  // bytes to be allocated: the arena, and the caller's buffers without a binding
  std::int64_t peak = 0;
};

void* allocate_by_cuda(std::size_t size_bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size_bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // forgets the error, which the next launch would report again
    return nullptr;
  }
  check_cuda(error, "cudaMalloc");
  return data;
}

void release_by_cuda(void* data) { cudaFree(data); }

void* allocate_pinned(std::size_t size_bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, size_bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(error, "cudaMallocHost");
  return data;
}

void release_pinned(void* data) { cudaFreeHost(data); }

DeviceBytes allocate_on_host(const Buffer& buffer) {
  const CudaAllocator allocator = pinned_allocator();
  if (buffer.bytes() == 0) return {nullptr, {allocator.release}};
  const auto size = static_cast<std::size_t>(buffer.bytes());
  DeviceBytes bytes(static_cast<std::byte*>(allocator.allocate(size)), {allocator.release});
  if (bytes == nullptr)
    throw InvalidInput(str("the host has no room for buffer ", buffer.name, " of ", buffer.bytes(),
                           " bytes (", human_bytes(buffer.bytes()),
                           ") of pinned memory; use fewer ranks on a host, or keep less there"));
  std::memset(bytes.get(), 0xFB, size);
  return bytes;
}

// Neither copies of the GPU reach pageable memory, nor the host's kernels the GPU's.
void check_pinned(const Plan& plan, const Binding& binding) {
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(binding.buffer)];
  if (!lies_on_host(buffer) || binding.size_bytes == 0) return;
  cudaPointerAttributes attributes{};
  CP_CUDA(cudaPointerGetAttributes(&attributes, binding.data));
  if (attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged) return;
  throw InvalidInput(str("buffer ", buffer.name, " is the host's, and is bound to ",
                         attributes.type == cudaMemoryTypeDevice
                             ? "memory of a GPU"
                             : "pageable memory, which copies of the GPU do not reach",
                         "; bind memory of cudaMallocHost or cudaHostRegister, or nothing: the device then "
                         "has some of its own"));
}

DeviceBytes allocate(std::int64_t size_bytes, std::string_view what, const Need& need,
                     const CudaAllocator& allocator, cudaStream_t stream) {
  if (size_bytes == 0) return {nullptr, {allocator.release}};
  const auto size = static_cast<std::size_t>(size_bytes);
  DeviceBytes bytes(static_cast<std::byte*>(allocator.allocate(size)), {allocator.release});
  if (bytes == nullptr) {
    std::size_t free = 0, total = 0;
    CP_CUDA(cudaMemGetInfo(&free, &total));
    throw InvalidInput(str("the GPU has no room for ", what, " of ", size_bytes, " bytes (",
                           human_bytes(size_bytes), "): the plan asks for ", need.asked, " bytes and needs ",
                           need.peak, " at its peak, but ", free, " of ", total,
                           " are free; use more ranks, shorter sequences or a narrower dtype"));
  }
  CP_CUDA(cudaMemsetAsync(bytes.get(), 0xFB, size, stream));
  return bytes;
}

}  // namespace

CudaAllocator cuda_allocator() { return {allocate_by_cuda, release_by_cuda}; }
CudaAllocator pinned_allocator() { return {allocate_pinned, release_pinned}; }

struct CudaMemory::Impl {
  struct Place {
    std::byte* data = nullptr;
    std::int64_t size_bytes = 0;
    DType dtype = DType::f32;
  };
  std::shared_ptr<CudaArena> arena;  // without the symmetric segment
  std::optional<DeviceBytes> segment;
  std::int64_t segment_bytes = 0;
  std::vector<DeviceBytes> owned;
  std::vector<Place> places;
  std::vector<std::int64_t> alignments;  // of bindings, by BufferId

  void place_temporaries(const Plan& plan) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      if (buffer.kind != BufferKind::temporary) continue;
      places[i].data = buffer.symmetric ? segment->get() + buffer.offset_bytes
                                        : arena->data + buffer.offset_bytes - plan.symmetric_bytes;
    }
  }
};

CudaMemory::CudaMemory(const Plan& plan, const Bindings& bindings, const CudaAllocator& allocator,
                       std::shared_ptr<CudaArena> shared, const CudaAllocator& of_symmetric)
    : impl_(std::make_unique<Impl>()) {
  const std::vector<std::byte*> bound = bound_addresses(plan, bindings);
  impl_->alignments = bound_alignments(plan);
  for (const Binding& binding : bindings) {
    check_alignment(plan, impl_->alignments, binding);
    check_pinned(plan, binding);
  }
  const auto is_missing = [&](std::size_t i) {
    return plan.buffers[i].kind != BufferKind::temporary && bound[i] == nullptr;
  };
  Need need{plan.arena_bytes, peak_bytes(plan)};
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (is_missing(i) && !lies_on_host(plan.buffers[i])) need.asked += plan.buffers[i].bytes();
  }
  // An arena that is too large, and that nobody else has, is not kept if there are buffers to allocate, too:
  // they may lack what the arena has too much of. The factor of two is chosen.
  const std::int64_t arena_bytes = plan.arena_bytes - plan.symmetric_bytes;
  const bool wastes = need.asked > plan.arena_bytes && shared.use_count() == 1;
  if (shared != nullptr && shared->size_bytes >= arena_bytes &&
      (!wastes || shared->size_bytes <= 2 * arena_bytes))
    impl_->arena = std::move(shared);
  shared.reset();
  const CudaStream filling(CudaStream::Priority::normal);
  if (impl_->arena == nullptr) {
    DeviceBytes made = allocate(arena_bytes, "the arena", need, allocator, filling.get());
    impl_->arena = std::make_shared<CudaArena>(made.get(), arena_bytes, allocator.release);
    static_cast<void>(made.release());
  }
  if (plan.symmetric_bytes > 0) {
    impl_->segment_bytes = plan.symmetric_bytes;
    impl_->segment.emplace(
        allocate(plan.symmetric_bytes, "the symmetric segment", need, of_symmetric, filling.get()));
  }
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    Impl::Place& place = impl_->places.emplace_back(Impl::Place{bound[i], buffer.bytes(), buffer.dtype});
    if (!is_missing(i)) continue;
    impl_->owned.push_back(lies_on_host(buffer) ? allocate_on_host(buffer)
                                                : allocate(buffer.bytes(), str("buffer ", buffer.name), need,
                                                           allocator, filling.get()));
    place.data = impl_->owned.back().get();
  }
  impl_->place_temporaries(plan);
  CP_CUDA(cudaStreamSynchronize(filling.get()));  // so that every stream finds it filled
}

CudaMemory::~CudaMemory() = default;

CudaArena::~CudaArena() {
  if (data != nullptr) release(data);
}

const std::shared_ptr<CudaArena>& CudaMemory::arena() const { return impl_->arena; }

std::span<std::byte> CudaMemory::symmetric() const {
  if (!impl_->segment) return {};
  return {impl_->segment->get(), static_cast<std::size_t>(impl_->segment_bytes)};
}

void CudaMemory::move_to(const Plan& plan, std::shared_ptr<CudaArena> arena) {
  impl_->arena = std::move(arena);
  impl_->place_temporaries(plan);
}

void CudaMemory::bind(const Plan& plan, const Bindings& changed) {
  for (const Binding& binding : changed) {
    check_binding(plan, binding);
    check_alignment(plan, impl_->alignments, binding);
    check_pinned(plan, binding);
  }
  for (const Binding& binding : changed)
    impl_->places[static_cast<std::size_t>(binding.buffer)].data = static_cast<std::byte*>(binding.data);
}

std::byte* CudaMemory::at(const View& view, std::int64_t iteration) const {
  const Impl::Place& place = impl_->places.at(static_cast<std::size_t>(view.buffer));
  if (view.numel() == 0) return place.data;  // an empty view may lie anywhere
  return place.data + offset_at(view, iteration) * cp::size_bytes(place.dtype);
}

DType CudaMemory::dtype(const View& view) const {
  return impl_->places.at(static_cast<std::size_t>(view.buffer)).dtype;
}

std::byte* CudaMemory::data(BufferId buffer) const {
  return impl_->places.at(static_cast<std::size_t>(buffer)).data;
}

std::int64_t CudaMemory::size_bytes(BufferId buffer) const {
  return impl_->places.at(static_cast<std::size_t>(buffer)).size_bytes;
}

}  // namespace cp::runtime
