#include "runtime/cuda/host_copies.h"

#include <algorithm>
#include <cstring>

#include "runtime/cuda/cuda_error.h"

namespace cp::runtime {

HostCopies::~HostCopies() {
  for (const Piece& piece : pieces_) {
    if (piece.memory != nullptr) static_cast<void>(cudaFreeHost(piece.memory));
  }
}

void* HostCopies::memory(Piece& piece) {
  if (piece.memory == nullptr) CP_CUDA(cudaMallocHost(&piece.memory, kPieceBytes));
  return piece.memory;
}

void HostCopies::upload(std::byte* device, std::span<const std::byte> host) {
  for (std::size_t at = 0, i = 0; at < host.size(); at += kPieceBytes, ++i) {
    Piece& piece = pieces_[i % pieces_.size()];
    const std::size_t bytes = std::min(kPieceBytes, host.size() - at);
    if (i >= pieces_.size()) CP_CUDA(cudaEventSynchronize(piece.copied.get()));
    std::memcpy(memory(piece), host.data() + at, bytes);
    CP_CUDA(cudaMemcpyAsync(device + at, piece.memory, bytes, cudaMemcpyDefault, stream_.get()));
    CP_CUDA(cudaEventRecord(piece.copied.get(), stream_.get()));
  }
  CP_CUDA(cudaStreamSynchronize(stream_.get()));
}

void HostCopies::download(std::span<std::byte> host, const std::byte* device) {
  const std::size_t count = (host.size() + kPieceBytes - 1) / kPieceBytes;
  const auto bytes = [&](std::size_t i) { return std::min(kPieceBytes, host.size() - i * kPieceBytes); };
  const auto begin = [&](std::size_t i) {
    Piece& piece = pieces_[i % pieces_.size()];
    CP_CUDA(
        cudaMemcpyAsync(memory(piece), device + i * kPieceBytes, bytes(i), cudaMemcpyDefault, stream_.get()));
    CP_CUDA(cudaEventRecord(piece.copied.get(), stream_.get()));
  };
  if (count > 0) begin(0);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + 1 < count) begin(i + 1);
    Piece& piece = pieces_[i % pieces_.size()];
    CP_CUDA(cudaEventSynchronize(piece.copied.get()));
    std::memcpy(host.data() + i * kPieceBytes, piece.memory, bytes(i));
  }
}

}  // namespace cp::runtime
