// HostCopies copies bytes between the host's memory and the GPU's by way of two pieces of pinned memory. The
// GPU copies one piece while the host fills or empties the other. So the link runs at full speed, whatever
// memory the caller has. What is called the device's may also be pinned memory of the host, for a plan's
// buffers there.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_streams.h"

namespace cp::runtime {

class HostCopies {
 public:
  // Chosen, not measured: large enough that a copy's fixed cost does not matter, small enough that the two
  // pieces take little pinned memory.
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Both block. Nothing else may use this memory of the device meanwhile.
  void upload(std::byte* device, std::span<const std::byte> host);
  void download(std::span<std::byte> host, const std::byte* device);

 private:
  struct Piece {
    void* memory = nullptr;
    CudaEvent copied{CudaEvent::Timing::off};
  };
  void* memory(Piece& piece);  // the first copy allocates it

  CudaStream stream_{CudaStream::Priority::normal};
  std::array<Piece, 2> pieces_;
};

}  // namespace cp::runtime
