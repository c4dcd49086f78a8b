#include "runtime/cuda/gpu_bytes.h"

#include "runtime/cuda/cuda_error.h"

namespace cp::runtime {

GpuBytes::GpuBytes(std::size_t size) {
  if (size == 0) return;
  void* data = nullptr;
  CP_CUDA(cudaMalloc(&data, size));
  data_.reset(static_cast<std::byte*>(data));
}

GpuBytes::GpuBytes(std::span<const std::byte> content) : GpuBytes(content.size()) {
  if (content.empty()) return;
  CP_CUDA(cudaMemcpy(data(), content.data(), content.size(), cudaMemcpyHostToDevice));
  CP_CUDA(cudaStreamSynchronize(nullptr));  // a copy from pageable memory may return before it has arrived
}

void GpuBytes::Free::operator()(std::byte* data) const { cudaFree(data); }

}  // namespace cp::runtime
