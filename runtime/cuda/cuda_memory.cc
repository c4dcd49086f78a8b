#include "runtime/cuda/cuda_memory.h"

#include <algorithm>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_error.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

struct Free {
  void operator()(std::byte* data) const { cudaFree(data); }
};
using DeviceBytes = std::unique_ptr<std::byte[], Free>;

// What the plan needs of this device's memory.
struct Need {
  std::int64_t asked = 0;  // bytes to be allocated: the arena, and the caller's buffers without a binding
  std::int64_t peak = 0;
};

DeviceBytes allocate(std::int64_t size_bytes, std::string_view what, const Need& need) {
  if (size_bytes == 0) return nullptr;
  const auto size = static_cast<std::size_t>(size_bytes);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it would be reported again by the next launch
    std::size_t free = 0, total = 0;
    CP_CUDA(cudaMemGetInfo(&free, &total));
    throw InvalidInput(str("no room for ", what, " of ", size_bytes, " bytes (", human_bytes(size_bytes),
                           ") on the GPU: the plan asks for ", need.asked, " bytes and peaks at ", need.peak,
                           ", ", free, " of ", total,
                           " are free; use more ranks, shorter sequences or a narrower dtype"));
  }
  check_cuda(error, "cudaMalloc");
  DeviceBytes bytes(static_cast<std::byte*>(data));
  CP_CUDA(cudaMemset(data, 0xFB, size));
  return bytes;
}

}  // namespace

struct CudaMemory::Impl {
  struct Place {
    std::byte* data = nullptr;
    std::int64_t size_bytes = 0;
    DType dtype = DType::f32;
  };
  DeviceBytes arena;
  std::vector<DeviceBytes> owned;
  std::vector<Place> places;

  void bind(const Plan& plan, const Binding& binding) {
    if (binding.buffer < 0 || static_cast<std::size_t>(binding.buffer) >= plan.buffers.size()) {
      throw InvalidInput(
          str("binding for buffer ", binding.buffer, ", but the plan has ", plan.buffers.size(), " buffers"));
    }
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(binding.buffer)];
    Place& place = places[static_cast<std::size_t>(binding.buffer)];
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

  void place_temporary(const Plan& plan, const Buffer& buffer, Place& place) const {
    if (buffer.offset_bytes < 0 || buffer.offset_bytes > plan.arena_bytes - buffer.bytes()) {
      throw InvalidInput(str("temporary ", buffer.name, " [", buffer.offset_bytes, ", ",
                             buffer.offset_bytes + buffer.bytes(), ") lies outside of the arena of ",
                             plan.arena_bytes, " bytes; PlanBuilder::build() places it"));
    }
    place.data = arena.get() + buffer.offset_bytes;
  }
};

CudaMemory::CudaMemory(const Plan& plan, const Bindings& bindings) : impl_(std::make_unique<Impl>()) {
  impl_->places.resize(plan.buffers.size());
  for (const Binding& binding : bindings) impl_->bind(plan, binding);
  const auto is_missing = [&](std::size_t i) {
    return plan.buffers[i].kind != BufferKind::temporary && impl_->places[i].data == nullptr;
  };
  Need need{plan.arena_bytes, peak_bytes(plan)};
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (is_missing(i)) need.asked += plan.buffers[i].bytes();
  }
  impl_->arena = allocate(plan.arena_bytes, "the arena", need);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    Impl::Place& place = impl_->places[i];
    place.size_bytes = buffer.bytes();
    place.dtype = buffer.dtype;
    if (buffer.kind == BufferKind::temporary) {
      impl_->place_temporary(plan, buffer, place);
    } else if (is_missing(i)) {
      impl_->owned.push_back(allocate(buffer.bytes(), str("buffer ", buffer.name), need));
      place.data = impl_->owned.back().get();
    }
  }
  CP_CUDA(cudaDeviceSynchronize());  // streams that do not wait for the default stream find it filled
}

CudaMemory::~CudaMemory() = default;

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
