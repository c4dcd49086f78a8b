// GpuBytes owns memory of the current device that is not a plan's: tables, workspaces, statistics of a step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace cp::runtime {

class GpuBytes {
 public:
  GpuBytes() = default;
  // Allocates `size` bytes, which are not set. Throws as check_cuda().
  explicit GpuBytes(std::size_t size);
  // Allocates memory with this content, and blocks until the content is there. Throws as check_cuda().
  explicit GpuBytes(std::span<const std::byte> content);

  std::byte* data() const { return data_.get(); }  // null if there are no bytes

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace cp::runtime
