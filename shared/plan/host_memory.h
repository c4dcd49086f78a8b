// HostMemory: the memory of one prepared plan on the host, for devices whose kernels run on the CPU.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp {

class HostMemory {
 public:
  // Allocates the arena and the caller's buffers that have no binding. Fresh memory is filled with bytes 0xFB
  // (a huge negative number in every floating type, a negative integer), so that reading what was never written
  // shows. Throws InvalidInput for a binding whose size differs from its buffer's.
  HostMemory(const Plan& plan, const Bindings& bindings);

  // First byte of the view in the given iteration.
  std::byte* at(const View& view, std::int64_t iteration) const;
  DType dtype(const View& view) const;
  std::span<std::byte> bytes(BufferId buffer) const;

 private:
  struct Place {
    std::byte* data = nullptr;
    std::int64_t size_bytes = 0;
    DType dtype = DType::f32;
  };
  std::unique_ptr<std::byte[]> arena_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
  std::vector<Place> places_;
};

}  // namespace cp
