// CUDA's runtime interface: captures and graphs.
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/capture.h"
#include "tests/emulated_gpu/devices.h"

using namespace cp::emulated;

namespace {

// An executable graph: a branch for each stream that was captured, which runs what that stream was given.
struct Executable {
  explicit Executable(std::shared_ptr<const CapturedGraph> its_graph) : graph(std::move(its_graph)) {
    for (std::size_t i = 0; i < graph->branches; ++i) branches.push_back(gpu(graph->device).create_branch());
  }
  ~Executable() { gpu(graph->device).give_back(std::move(branches)); }  // what runs goes on
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  void launch(const std::shared_ptr<Stream>& stream) {
    std::vector<Stream::Work> works;  // made without the device's lock
    for (const GraphPiece& piece : graph->pieces)
      works.push_back(piece.kind == GraphPiece::Kind::work ? piece.make() : Stream::Work());
    gpu(graph->device).push(stream, [&](Stream& to) { run(to, works); });
  }

 private:
  // Behind what is on the stream, and what comes behind the launch begins when all branches have ended.
  void run(Stream& to, std::vector<Stream::Work>& works) {
    const auto begin = to.record();
    for (const auto& branch : branches) branch->wait_for(begin);
    std::vector<std::shared_ptr<Record>> points(graph->points);
    for (std::size_t i = 0; i < works.size(); ++i) {
      const GraphPiece& piece = graph->pieces[i];
      Stream& branch = *branches[piece.branch];
      if (piece.kind == GraphPiece::Kind::work) branch.push(std::move(works[i]), piece.vital);
      if (piece.kind == GraphPiece::Kind::record) points[piece.point] = branch.record();
      if (piece.kind == GraphPiece::Kind::wait) branch.wait_for(points[piece.point]);
    }
    for (const auto& branch : branches) to.wait_for(branch->record());
  }

 public:
  const std::shared_ptr<const CapturedGraph> graph;
  std::vector<std::shared_ptr<Stream>> branches;
};

struct Graphs {
  std::mutex mutex;
  std::map<cudaGraph_t, std::shared_ptr<const CapturedGraph>> graphs;
  std::map<cudaGraphExec_t, std::shared_ptr<Executable>> executables;
};

Graphs& graphs() {
  static auto& all = *new Graphs;
  return all;
}

}  // namespace

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call([&] {
    if (mode == nullptr) return cudaErrorInvalidValue;
    *mode = exchange_capture_mode(*mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call([&] {
    const auto stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (gpu(stream->device()).is_default_stream(*stream))
      return refused(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture",
                     "the default stream cannot be captured");
    if (stream->capture())
      return refused(cudaErrorIllegalState, "cudaStreamBeginCapture", "the stream is captured already");
    static_cast<void>(Capture::begin(stream, mode));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call([&] {
    const auto stream = find_stream(handle);
    if (!stream || graph == nullptr) return cudaErrorInvalidResourceHandle;
    *graph = nullptr;
    const auto capture = stream->capture();
    if (!capture) return refused(cudaErrorIllegalState, "cudaStreamEndCapture", "the stream is not captured");
    std::optional<CapturedGraph> captured;
    if (const cudaError_t error = capture->end(*stream, captured)) return error;
    auto made = std::make_shared<const CapturedGraph>(std::move(*captured));
    *graph = reinterpret_cast<cudaGraph_t>(const_cast<CapturedGraph*>(made.get()));
    const std::lock_guard lock(graphs().mutex);
    graphs().graphs.emplace(*graph, std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call([&] {
    const auto stream = find_stream(handle);
    if (!stream || status == nullptr) return cudaErrorInvalidResourceHandle;
    const auto capture = stream->capture();
    *status = !capture                ? cudaStreamCaptureStatusNone
              : capture->is_invalid() ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return call([&] {
    if (executable == nullptr || flags != 0) return cudaErrorInvalidValue;
    std::shared_ptr<const CapturedGraph> captured;
    {
      const std::lock_guard lock(graphs().mutex);
      const auto found = graphs().graphs.find(graph);
      if (found == graphs().graphs.end()) return cudaErrorInvalidValue;
      captured = found->second;
    }
    auto made = std::make_shared<Executable>(std::move(captured));
    *executable = reinterpret_cast<cudaGraphExec_t>(made.get());
    const std::lock_guard lock(graphs().mutex);
    graphs().executables.emplace(*executable, std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return call([&] {
    const auto stream = find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<Executable> found;
    {
      const std::lock_guard lock(graphs().mutex);
      const auto place = graphs().executables.find(executable);
      if (place == graphs().executables.end()) return cudaErrorInvalidValue;
      found = place->second;
    }
    if (stream->capture()) {
      stream->capture()->invalidate();
      return refused(cudaErrorStreamCaptureUnsupported, "cudaGraphLaunch", "child graphs are not emulated");
    }
    if (stream->device() != found->graph->device)
      return refused(cudaErrorInvalidValue, "cudaGraphLaunch", "the graph is of another GPU");
    found->launch(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&] {
    const std::lock_guard lock(graphs().mutex);
    return graphs().graphs.erase(graph) > 0 ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// Of a GPU that has failed, too: then nothing is left of it that would run, and the error is returned.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  std::shared_ptr<Executable> last;
  {
    const std::lock_guard lock(graphs().mutex);
    const auto found = graphs().executables.find(executable);
    if (found != graphs().executables.end()) {
      last = std::move(found->second);
      graphs().executables.erase(found);
    }
  }
  return call([&] { return last != nullptr ? cudaSuccess : cudaErrorInvalidValue; });
}

}  // extern "C"
