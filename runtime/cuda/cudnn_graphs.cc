#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <cudnn_frontend.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/cudnn_library.h"
#include "runtime/cuda/fused_graph.h"
#include "shared/base/error.h"
#include "shared/base/version.h"

namespace cp::runtime {
namespace {

namespace fe = cudnn_frontend;

void check_cudnn(cudnnStatus_t status, std::string_view call) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw InvalidInput(str("cuDNN: ", call, " failed: ", fe::detail::get_error_string(status)));
}

// The handles of one device. One runs graphs, on one thread at a time; each thread that builds one has
// another meanwhile, since a handle is no object for two threads.
class Handles {
 public:
  Handles() { CP_CUDA(cudaGetDevice(&device_)); }
  ~Handles() {
    for (cudnnHandle_t handle : all_) static_cast<void>(fe::detail::destroy_handle(handle));
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  int device() const { return device_; }

  cudnnHandle_t running_on(cudaStream_t stream) {
    if (running_ == nullptr) running_ = take();
    if (has_stream_ && stream == stream_) return running_;
    check_cudnn(fe::detail::set_stream(running_, stream), "cudnnSetStream");
    stream_ = stream, has_stream_ = true;
    return running_;
  }

  // Makes the device the thread's, and lends a handle to f.
  template <class F>
  auto lent(const F& f) {
    CP_CUDA(cudaSetDevice(device_));
    struct Lease {
      explicit Lease(Handles& from) : handles(from), handle(from.take()) {}
      ~Lease() { handles.give_back(handle); }
      Handles& handles;
      cudnnHandle_t handle;
    };
    const Lease lease(*this);
    return f(lease.handle);
  }

 private:
  cudnnHandle_t take() {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      cudnnHandle_t handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
    load_cudnn();
    cudnnHandle_t handle = nullptr;
    check_cudnn(fe::detail::create_handle(&handle), "cudnnCreate");
    all_.push_back(handle);
    return handle;
  }
  void give_back(cudnnHandle_t handle) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(handle);
  }

  int device_ = 0;
  cudnnHandle_t running_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
  std::mutex mutex_;
  std::vector<cudnnHandle_t> all_, idle_;
};

class Graph final : public FusedGraph {
 public:
  Graph(CudnnGraph graph, std::shared_ptr<Handles> handles)
      : graph_(std::move(graph)), handles_(std::move(handles)) {}

  std::int64_t workspace_bytes() const override { return graph_.workspace_bytes; }
  std::string engine() const override { return graph_.engine; }
  void enqueue(TensorAddresses& addresses, std::byte* workspace, cudaStream_t stream) const override {
    fe::error_t status = graph_.graph->execute(handles_->running_on(stream), addresses, workspace);
    if (status.is_good()) return;
    CP_CUDA(cudaGetLastError());  // the GPU is lost
    throw InvalidInput(str("cuDNN could not run it by ", graph_.engine, ": ", status.get_message()));
  }
  const CudnnGraph& graph() const { return graph_; }

 private:
  const CudnnGraph graph_;
  const std::shared_ptr<Handles> handles_;  // the graph goes before them
};

class Builder final : public FusedGraphBuilder {
 public:
  BuiltGraph build(const CudnnGraphKey& key) override {
    return handles_->lent([&](cudnnHandle_t handle) { return made(build_cudnn_graph(key, handle)); });
  }

  // The compiled kernels fit a kind of GPU and a driver; what was chosen depends on the multiprocessors, too.
  std::string version() override {
    const std::lock_guard lock(mutex_);
    if (!version_.empty()) return version_;
    cudaDeviceProp gpu;
    int driver = 0;
    CP_CUDA(cudaGetDeviceProperties(&gpu, handles_->device()));
    CP_CUDA(cudaDriverGetVersion(&driver));
    version_ = str("cuDNN ", loaded_cudnn_version(), ", cudnn-frontend ", CUDNN_FRONTEND_VERSION, ", cpsim ",
                   kVersion, ", CUDA driver ", driver, ", sm", gpu.major, gpu.minor, ", ", gpu.name, " with ",
                   gpu.multiProcessorCount, " multiprocessors");
    return version_;
  }

  std::vector<std::byte> write(const FusedGraph& graph) override {
    return write_cudnn_graph(static_cast<const Graph&>(graph).graph());
  }
  BuiltGraph read(std::span<const std::byte> bytes) override {
    return handles_->lent([&](cudnnHandle_t handle) { return made(read_cudnn_graph(bytes, handle)); });
  }

 private:
  BuiltGraph made(CudnnGraph graph) const {
    if (!graph.graph) return {nullptr, graph.refusal};
    return {std::make_shared<Graph>(std::move(graph), handles_), ""};
  }

  const std::shared_ptr<Handles> handles_ = std::make_shared<Handles>();
  std::mutex mutex_;
  std::string version_;
};

}  // namespace

std::unique_ptr<FusedGraphBuilder> fused_graph_builder() { return std::make_unique<Builder>(); }

std::optional<CudnnVersion> fused_library_version() {
  try {
    return loaded_cudnn_version();
  } catch (const InvalidInput&) {
    return {};
  }
}

std::map<std::string, std::string> fused_library_versions() {
  std::map<std::string, std::string> versions;
  if (const auto version = cudnn_version()) versions["cudnn"] = *version;
  return versions;
}

}  // namespace cp::runtime
