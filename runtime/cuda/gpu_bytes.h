// GpuBytes: memory of the current device beside a plan's: tables, workspaces, statistics of a step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace cp::runtime {

class GpuBytes {
 public:
  GpuBytes() = default;
  // Holds anything at first. Throws as check_cuda.
  explicit GpuBytes(std::size_t size);
  // Holds these; blocks until they are there.
  explicit GpuBytes(std::span<const std::byte> content);

  std::byte* data() const { return data_.get(); }  // null for none

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace cp::runtime
