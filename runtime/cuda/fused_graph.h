// FusedGraph and FusedGraphBuilder: what FusedKernels and GraphCache need of the library that has the graphs.
// cuDNN's are in cudnn_graphs.cc; the emulated GPU and tests have others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/fused_call.h"
#include "shared/plan/cudnn_abilities.h"

namespace cp::runtime {

// The address of each tensor that a graph binds, on the GPU, by its number (CudnnTensor, offsets_of()).
using TensorAddresses = std::unordered_map<std::int64_t, void*>;

class FusedGraph {
 public:
  virtual ~FusedGraph() = default;
  virtual std::int64_t workspace_bytes() const = 0;
  // The library's name of the kernels and their settings, for messages.
  virtual std::string engine() const = 0;
  // Enqueues a call. It allocates nothing. Throws InvalidInput with the library's words.
  virtual void enqueue(TensorAddresses& addresses, std::byte* workspace, cudaStream_t stream) const = 0;
};

// A graph, or why there is none.
struct BuiltGraph {
  std::shared_ptr<const FusedGraph> graph;
  std::string refusal;
};

class FusedGraphBuilder {
 public:
  virtual ~FusedGraphBuilder() = default;
  // Several threads may call this at once, whichever device they had. Throws InvalidInput if there is no
  // library.
  virtual BuiltGraph build(const CudnnGraphKey& key) = 0;

  // What a graph that was written down depends on, beside its key: versions, and the GPU. Empty if graphs
  // cannot be written. As build(), any thread may call these.
  virtual std::string version() = 0;
  virtual std::vector<std::byte> write(const FusedGraph& graph) = 0;  // empty: this one cannot be written
  virtual BuiltGraph read(std::span<const std::byte> bytes) = 0;
};

// Of the library that this build has, for the current device.
std::unique_ptr<FusedGraphBuilder> fused_graph_builder();
// The version of the library that runs, not of the one at compile time; nothing if there is none, or if it is
// none of cuDNN's.
std::optional<CudnnVersion> fused_library_version();
std::map<std::string, std::string> fused_library_versions();  // {"cudnn": "9.19.0"}

}  // namespace cp::runtime
