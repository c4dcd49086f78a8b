#include "runtime/cuda/cuda_graphs.h"

#include <utility>

#include "runtime/cuda/cuda_error.h"

namespace cp::runtime {

GraphCapture::GraphCapture(cudaStream_t origin) : origin_(origin) {
  CP_CUDA(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
}

GraphCapture::~GraphCapture() {
  if (origin_ == nullptr) return;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(origin_, &graph) == cudaSuccess && graph != nullptr)
    static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());
}

cudaGraph_t GraphCapture::end() {
  cudaGraph_t graph = nullptr;
  CP_CUDA(cudaStreamEndCapture(std::exchange(origin_, nullptr), &graph));
  return graph;
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CP_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

CudaGraphs::Id CudaGraphs::add(cudaGraph_t graph) {
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check_cuda(error, "cudaGraphInstantiate");
  const std::lock_guard lock(mutex_);
  if (closed_) {
    static_cast<void>(cudaGraphExecDestroy(made));
  } else {
    graphs_.emplace(next_, made);
  }
  return next_++;
}

bool CudaGraphs::launch(Id id, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(id);
  if (found == graphs_.end()) return false;
  CP_CUDA(cudaGraphLaunch(found->second, stream));
  return true;
}

void CudaGraphs::drop(Id id) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(id);
  if (found == graphs_.end()) return;
  static_cast<void>(cudaGraphExecDestroy(found->second));
  graphs_.erase(found);
}

void CudaGraphs::drop_all() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& [id, graph] : graphs_) static_cast<void>(cudaGraphExecDestroy(graph));
  graphs_.clear();
}

}  // namespace cp::runtime
