// Graphs of CUDA: what was put on streams once, to be launched again as one.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include <cuda_runtime_api.h>

namespace cp::runtime {

// What is put on the stream from here on, and on streams that wait for events behind that, becomes a graph
// and does not run. Those streams must be waited for by the first one before the end, and the thread calls
// nothing of CUDA's meanwhile that waits or allocates: other threads may (cudaStreamCaptureModeThreadLocal).
// All functions throw as check_cuda().
class GraphCapture {
 public:
  explicit GraphCapture(cudaStream_t origin);
  ~GraphCapture();  // gives up what was captured, unless it has ended
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  // Ends the capture. The caller owns the graph.
  cudaGraph_t end();

 private:
  cudaStream_t origin_;  // null: ended
};

// Whether what is put on the stream becomes part of a graph at this moment.
bool is_captured(cudaStream_t stream);

// The executable graphs of a device. NCCL frees no communicator while a graph has work of it, so all graphs
// go before the communicators do; any thread may say so, whatever the rank's thread does.
class CudaGraphs {
 public:
  using Id = std::int64_t;

  CudaGraphs() = default;
  ~CudaGraphs() { drop_all(); }
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  // Makes it executable, and destroys `graph`. Throws as check_cuda().
  Id add(cudaGraph_t graph);
  // Puts the graph on the stream. Returns false if it was dropped. Throws as check_cuda().
  bool launch(Id id, cudaStream_t stream);
  // A graph that runs goes on, and is freed when it has ended.
  void drop(Id id);
  // No graph can be added or launched any more.
  void drop_all();

 private:
  std::mutex mutex_;
  std::map<Id, cudaGraphExec_t> graphs_;
  Id next_ = 0;
  bool closed_ = false;
};

}  // namespace cp::runtime
