// Captures: what streams are given becomes a graph instead of running. As strict as CUDA: unsafe calls,
// dependencies that cross the border of a capture, and streams that do not join again end it as an error.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/emulated_gpu/streams.h"

namespace cp::emulated {

// Called each time the graph is launched, on the thread that launches it: returns what its stream runs then.
using MakeWork = std::function<Stream::Work()>;

// What a captured stream was given.
struct GraphPiece {
  enum class Kind { work, record, wait };
  Kind kind = Kind::work;
  std::size_t branch = 0;  // one for each stream that took part
  MakeWork make = {};
  bool vital = false;     // as Stream::push()
  std::size_t point = 0;  // of a record, or that a wait is for
};

struct CapturedGraph {
  int device = 0;
  std::size_t branches = 0, points = 0;
  std::vector<GraphPiece> pieces;  // in the order of the calls
};

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  // Begins. The stream is not capturing.
  static std::shared_ptr<Capture> begin(const std::shared_ptr<Stream>& origin, cudaStreamCaptureMode mode);

  cudaStreamCaptureMode mode() const { return mode_; }
  bool is_of_this_thread() const { return thread_ == std::this_thread::get_id(); }
  bool is_invalid() const;
  bool is_over() const;
  bool has_blocking_stream(int device) const;  // one that the default stream waits for

  // Each says what went wrong, which ends the capture's hopes: all that is left is to end it.
  cudaError_t add(const Stream& stream, MakeWork make, bool vital);
  cudaError_t record(const Stream& stream, std::size_t& point);
  cudaError_t wait(const std::shared_ptr<Stream>& stream, std::size_t point);  // the stream takes part then
  void invalidate();

  // The streams are free again, whatever the result.
  cudaError_t end(const Stream& stream, std::optional<CapturedGraph>& graph);

 private:
  Capture(std::shared_ptr<Stream> origin, cudaStreamCaptureMode mode)
      : origin_(std::move(origin)), mode_(mode) {}

  struct Branch {
    std::shared_ptr<Stream> stream;
    std::size_t number = 0;
    std::set<std::size_t> behind;  // pieces that have run where the stream is
  };
  Branch& branch_of(const Stream& stream);
  cudaError_t finish(std::optional<CapturedGraph>& graph);

  const std::shared_ptr<Stream> origin_;
  const cudaStreamCaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  std::map<const Stream*, Branch> branches_;
  std::vector<std::set<std::size_t>> points_;
  CapturedGraph graph_;
  std::size_t works_ = 0;
  bool invalid_ = false, over_ = false;
};

// Puts the work on the stream, or into its capture. `function` is the caller's, for messages.
cudaError_t push_work(const std::shared_ptr<Stream>& stream, const char* function, Stream::Work work,
                      bool vital = false);

// For functions that CUDA calls potentially unsafe: those that may wait for the device, or allocate. Refused,
// and ends the captures that forbid them: of this thread, and those of others that are global.
cudaError_t refuse_unsafe(const char* function);
// The same for one that waits for the stream.
cudaError_t refuse_waiting(const Stream& stream, const char* function);
cudaError_t refuse_waiting_for_device(int device, const char* function);

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);  // of this thread

}  // namespace cp::emulated
