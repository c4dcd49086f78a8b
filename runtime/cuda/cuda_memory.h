// CudaMemory: the memory of one prepared plan on the GPU: the arena, and the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Where memory of the current device comes from.
struct CudaAllocator {
  // Null where there is no room; throws for another error.
  void* (*allocate)(std::size_t size_bytes) = nullptr;
  void (*release)(void* data) = nullptr;
};
CudaAllocator cuda_allocator();  // cudaMalloc

class CudaMemory {
 public:
  // On the current device. Allocates the arena and the caller's buffers that have no binding; bindings are
  // addresses of the GPU. Fresh memory is filled with bytes 0xFB, as HostMemory's is, so that reading what
  // was never written shows. Throws InvalidInput for a binding whose size differs from its buffer's, and
  // where the memory does not suffice: with what was asked, what is free, and the plan's peak. Synchronizes
  // the device: what the caller enqueued for its buffers has happened.
  //
  // `before`: of a plan that has ended, from the same allocator. Its arena, where it is of use, becomes this
  // one's with what it holds.
  explicit CudaMemory(const Plan& plan, const Bindings& bindings,
                      const CudaAllocator& allocator = cuda_allocator(),
                      std::unique_ptr<CudaMemory> before = nullptr);
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // First byte of the view in the given iteration; an address of the GPU.
  std::byte* at(const View& view, std::int64_t iteration) const;
  DType dtype(const View& view) const;
  // The whole of a buffer.
  std::byte* data(BufferId buffer) const;
  std::int64_t size_bytes(BufferId buffer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
