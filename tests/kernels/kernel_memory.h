// KernelMemory: buffers of the caller's values, on which single kernels run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"
#include "tests/support/values.h"

namespace cp::testing {

class KernelMemory {
 public:
  BufferId add(DType dtype, const std::vector<double>& values) {
    const auto id = static_cast<BufferId>(plan_.buffers.size());
    plan_.buffers.push_back(
        {str("b", id), BufferKind::inout, dtype, static_cast<std::int64_t>(values.size())});
    bytes_.push_back(encode(dtype, values));
    return id;
  }
  void run(const Kernel& kernel, std::int64_t iteration = 0) {
    with([&](const HostMemory& memory) { run_kernel(kernel, memory, iteration); });
  }
  // Calls f(memory).
  template <class F>
  void with(F&& f) {
    Bindings bindings;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bindings.push_back(
          {static_cast<BufferId>(i), bytes_[i].data(), static_cast<std::int64_t>(bytes_[i].size())});
    }
    f(HostMemory(plan_, bindings));
  }
  std::vector<double> values(BufferId buffer) const {
    return decode(plan_.buffers[static_cast<std::size_t>(buffer)].dtype,
                  bytes_[static_cast<std::size_t>(buffer)]);
  }

 private:
  Plan plan_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace cp::testing
