// CudaMemory is the memory of one prepared plan on the GPU: the arena, and the caller's buffers.
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
  // Returns null if there is no room, and throws for any other error.
  void* (*allocate)(std::size_t size_bytes) = nullptr;
  void (*release)(void* data) = nullptr;
};
CudaAllocator cuda_allocator();    // cudaMalloc
CudaAllocator pinned_allocator();  // cudaMallocHost: of the host, and GPUs reach it

// Where the temporaries of one plan are on the GPU, or of several plans whose runs follow one another.
struct CudaArena {
  std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
  void (*release)(void*) = nullptr;

  CudaArena(std::byte* bytes, std::int64_t size, void (*its_release)(void*))
      : data(bytes), size_bytes(size), release(its_release) {}
  ~CudaArena();
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;
};

class CudaMemory {
 public:
  // Allocates, on the current device, the arena and those of the caller's buffers that have no binding, and
  // owns them. Bindings are addresses of the GPU and stay the caller's. Fresh memory is filled with bytes
  // 0xFB, like HostMemory's, so that reading what was never written shows. This waits until the memory is
  // filled, and for nothing else on the device.
  //
  // Buffers that lie on the host (host_place.h) are pinned memory, those without a binding that of
  // pinned_allocator().
  //
  // `shared` is an arena from the same allocator: that of a plan that has ended, or of plans whose runs and
  // this one's follow one another. If it is large enough, it becomes that of this object too, with its
  // contents.
  //
  // The plan's symmetric segment is memory of its own, by `of_symmetric`, and of the same size on all ranks;
  // the arena is the rest.
  //
  // Throws InvalidInput if a binding has another size than its buffer, if its address is not aligned as a
  // fused step of the plan needs it (bound_alignment.h), if a buffer of the host is bound to memory that
  // is not pinned, or if the GPU's memory is too small; the message has what was asked for, what is free, and
  // the plan's peak.
  explicit CudaMemory(const Plan& plan, const Bindings& bindings,
                      const CudaAllocator& allocator = cuda_allocator(),
                      std::shared_ptr<CudaArena> shared = nullptr,
                      const CudaAllocator& of_symmetric = cuda_allocator());
  ~CudaMemory();

  const std::shared_ptr<CudaArena>& arena() const;
  // The symmetric segment; empty if the plan has none.
  std::span<std::byte> symmetric() const;
  // Puts the plan's other temporaries into `arena`, which is not smaller than theirs, for what is launched
  // from here on; what they hold is lost.
  void move_to(const Plan& plan, std::shared_ptr<CudaArena> arena);

  // Binds buffers anew for the kernels and collectives that are launched from here on; those that were
  // launched before have the addresses of then. Throws InvalidInput as the constructor does, and changes
  // nothing then.
  void bind(const Plan& plan, const Bindings& changed);
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // The GPU's address of the first byte of the view in the given iteration.
  std::byte* at(const View& view, std::int64_t iteration) const;
  DType dtype(const View& view) const;
  // The GPU's address of a buffer, and its size.
  std::byte* data(BufferId buffer) const;
  std::int64_t size_bytes(BufferId buffer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
