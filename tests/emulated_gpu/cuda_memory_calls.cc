// CUDA's runtime interface: memory and copies.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/capture.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/devices.h"

using namespace cp::emulated;
using cp::str;

namespace {

// `height` rows of `width` bytes.
struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t to_pitch = 0, from_pitch = 0, width = 0, height = 1;

  std::size_t to_extent() const { return height == 0 || width == 0 ? 0 : (height - 1) * to_pitch + width; }
  std::size_t from_extent() const {
    return height == 0 || width == 0 ? 0 : (height - 1) * from_pitch + width;
  }
  void run() const {
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(to + row * to_pitch, from + row * from_pitch, width);
  }
};

bool is_device_memory(const void* data) {
  const auto found = device_memory().find(data);
  return found && found->device >= 0;
}

bool is_pinned(const void* data) {
  const auto found = device_memory().find(data);
  return found && found->device < 0;
}

struct Sides {
  bool from_device = false, to_device = false;
};

Sides sides_of(const Copy& copy, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return {false, false};
    case cudaMemcpyHostToDevice:
      return {false, true};
    case cudaMemcpyDeviceToHost:
      return {true, false};
    case cudaMemcpyDeviceToDevice:
      return {true, true};
    case cudaMemcpyDefault:
      break;
  }
  return {is_device_memory(copy.from), is_device_memory(copy.to)};
}

std::optional<std::string> refuse(const Copy& copy, Sides sides) {
  const DeviceMemory& memory = device_memory();
  const auto from = sides.from_device ? memory.refuse(copy.from, copy.from_extent())
                                      : memory.refuse_host(copy.from, copy.from_extent());
  if (from) return "source: " + *from;
  const auto to = sides.to_device ? memory.refuse(copy.to, copy.to_extent())
                                  : memory.refuse_host(copy.to, copy.to_extent());
  if (to) return "destination: " + *to;
  return std::nullopt;
}

// What is enqueued checks again: memory may be freed meanwhile.
void require(const Copy& copy, Sides sides) {
  if (const auto why = refuse(copy, sides)) throw DeviceFailure(cudaErrorIllegalAddress, "copy: " + *why);
}

cudaError_t enqueue_copy(const char* function, Copy copy, cudaMemcpyKind kind, cudaStream_t handle,
                         bool async) {
  return call(
      [&] {
        const Sides sides = sides_of(copy, kind);
        if (const auto why = refuse(copy, sides)) return refused(cudaErrorInvalidValue, function, *why);
        if (copy.width > copy.to_pitch || copy.width > copy.from_pitch) return cudaErrorInvalidValue;
        const auto stream = find_stream(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        const bool to_pageable = !sides.to_device && !is_pinned(copy.to);
        const bool from_pageable = !sides.from_device && !is_pinned(copy.from);
        if (!async) {
          if (const cudaError_t error = refuse_waiting(*stream, function)) return error;
        } else if (stream->capture() && (to_pageable || from_pageable)) {
          stream->capture()->invalidate();
          return refused(cudaErrorStreamCaptureUnsupported, function,
                         "a graph would use pageable memory when it runs");
        }
        Stream::Work work = [copy, sides] {
          require(copy, sides);
          copy.run();
        };
        if (async && from_pageable) {
          // From pageable memory: staged, so that the caller may reuse it on return.
          auto staged = std::make_shared<std::vector<std::byte>>(copy.from, copy.from + copy.from_extent());
          work = [copy, sides, staged]() mutable {
            copy.from = staged->data();
            require(copy, sides);
            copy.run();
          };
        }
        if (const cudaError_t error = push_work(stream, function, std::move(work))) return error;
        if (!async || to_pageable) stream->finish();
        return gpu(stream->device()).error();
      },
      function);
}

Copy flat(void* to, const void* from, std::size_t size) {
  return {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size, size, size, 1};
}

Copy pitched(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
             std::size_t height) {
  return {
      static_cast<std::byte*>(to), static_cast<const std::byte*>(from), to_pitch, from_pitch, width, height};
}

cudaError_t enqueue_fill(const char* function, void* data, int value, std::size_t size, cudaStream_t handle,
                         bool async) {
  return call(
      [&] {
        if (const auto why = device_memory().refuse(data, size))
          return refused(cudaErrorInvalidValue, function, *why);
        const auto stream = find_stream(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (const cudaError_t error = async ? cudaSuccess : refuse_waiting(*stream, function)) return error;
        const auto fill = [=] {
          if (const auto why = device_memory().refuse(data, size))
            throw DeviceFailure(cudaErrorIllegalAddress, "fill: " + *why);
          if (size > 0) std::memset(data, value, size);
        };
        if (const cudaError_t error = push_work(stream, function, fill)) return error;
        if (!async) stream->finish();
        return gpu(stream->device()).error();
      },
      function);
}

cudaError_t allocate(const char* function, void** data, std::size_t size, int device) {
  return call(
      [&] {
        if (const cudaError_t error = refuse_unsafe(function)) return error;
        *data = nullptr;
        if (size == 0) return cudaSuccess;
        *data = device_memory().allocate(size, device);
        return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
      },
      function);
}

void finish_all(int device) {
  for (const auto& stream : gpu(device).streams()) stream->finish();
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** data, std::size_t size) {
  return allocate("cudaMalloc", data, size, current_device());
}
cudaError_t cudaMallocHost(void** data, std::size_t size) {
  return allocate("cudaMallocHost", data, size, -1);
}
cudaError_t cudaHostAlloc(void** data, std::size_t size, unsigned) {
  return allocate("cudaHostAlloc", data, size, -1);
}

cudaError_t cudaFree(void* data) {
  return call([&] {
    if (data == nullptr) return cudaSuccess;
    if (const cudaError_t error = refuse_unsafe("cudaFree")) return error;
    const auto found = device_memory().find(data);
    if (found && found->device >= 0) finish_all(found->device);  // as the driver does
    if (!device_memory().free(data, true))
      return refused(cudaErrorInvalidValue, "cudaFree", str(data, " was not allocated, or is freed"));
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* data) {
  return call([&] {
    if (data == nullptr) return cudaSuccess;
    if (const cudaError_t error = refuse_unsafe("cudaFreeHost")) return error;
    if (device_memory().find(data)) finish_all(current_device());
    if (!device_memory().free(data, false))
      return refused(cudaErrorInvalidValue, "cudaFreeHost", str(data, " was not allocated, or is freed"));
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** data, std::size_t size, cudaStream_t handle) {
  const auto stream = find_stream(handle);
  if (stream && stream->capture())
    return call([&] { return refuse_waiting(*stream, "cudaMallocAsync"); });  // graphs of it are not emulated
  return allocate("cudaMallocAsync", data, size, current_device());
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t handle) {
  return call([&] {
    const auto stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture()) return refuse_waiting(*stream, "cudaFreeAsync");
    return push_work(stream, "cudaFreeAsync", [data] {
      if (data != nullptr && !device_memory().free(data, true))
        throw DeviceFailure(cudaErrorInvalidValue,
                            str("cudaFreeAsync: ", data, " was not allocated, or is freed"));
    });
  });
}

cudaError_t cudaHostRegister(void* data, std::size_t size, unsigned) {
  return call([&] {
    if (const cudaError_t error = refuse_unsafe("cudaHostRegister")) return error;
    if (device_memory().find(data)) return cudaErrorHostMemoryAlreadyRegistered;
    device_memory().add_registered(data, size);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* data) {
  return call([&] {
    return device_memory().remove_registered(data) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call([&] {
    *total = device_memory().limit();
    const std::size_t used = device_memory().used(current_device());
    *free = used < *total ? *total - used : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return call([&] {
    *attributes = {};
    const auto found = device_memory().find(data);
    attributes->type = !found               ? cudaMemoryTypeUnregistered
                       : found->device >= 0 ? cudaMemoryTypeDevice
                                            : cudaMemoryTypeHost;
    attributes->device = found && found->device >= 0 ? found->device : current_device();
    if (found) attributes->devicePointer = const_cast<void*>(data);
    if (found && found->device < 0) attributes->hostPointer = const_cast<void*>(data);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  return enqueue_copy("cudaMemcpy", flat(to, from, size), kind, nullptr, false);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return enqueue_copy("cudaMemcpyAsync", flat(to, from, size), kind, stream, true);
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  return enqueue_copy("cudaMemcpy2D", pitched(to, to_pitch, from, from_pitch, width, height), kind, nullptr,
                      false);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return enqueue_copy("cudaMemcpy2DAsync", pitched(to, to_pitch, from, from_pitch, width, height), kind,
                      stream, true);
}

cudaError_t cudaMemset(void* data, int value, std::size_t size) {
  return enqueue_fill("cudaMemset", data, value, size, nullptr, false);
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t size, cudaStream_t stream) {
  return enqueue_fill("cudaMemsetAsync", data, value, size, stream, true);
}

}  // extern "C"
