#include "tests/emulated_gpu/capture.h"

#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "tests/emulated_gpu/devices.h"

namespace cp::emulated {
namespace {

thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

// Those that are under way.
struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> all;
};

Captures& captures() {
  static auto& all = *new Captures;
  return all;
}

std::vector<std::shared_ptr<Capture>> captures_under_way() {
  const std::lock_guard lock(captures().mutex);
  return captures().all;
}

cudaError_t ends(const std::vector<std::shared_ptr<Capture>>& of, cudaError_t error, const char* function,
                 const std::string& why) {
  for (const auto& capture : of) capture->invalidate();
  return refused(error, function, why);
}

}  // namespace

std::shared_ptr<Capture> Capture::begin(const std::shared_ptr<Stream>& origin, cudaStreamCaptureMode mode) {
  std::shared_ptr<Capture> made(new Capture(origin, mode));
  made->graph_.device = origin->device();
  made->branches_[origin.get()] = {origin, made->graph_.branches++, {}};
  origin->set_capture(made);
  const std::lock_guard lock(captures().mutex);
  captures().all.push_back(made);
  return made;
}

bool Capture::is_invalid() const {
  const std::lock_guard lock(mutex_);
  return invalid_;
}

bool Capture::is_over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

bool Capture::has_blocking_stream(int device) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(branches_, [&](const auto& branch) {
    return branch.first->device() == device && (branch.first->flags() & cudaStreamNonBlocking) == 0;
  });
}

void Capture::invalidate() {
  const std::lock_guard lock(mutex_);
  invalid_ = true;
}

Capture::Branch& Capture::branch_of(const Stream& stream) { return branches_.at(&stream); }

cudaError_t Capture::add(const Stream& stream, MakeWork make, bool vital) {
  const std::lock_guard lock(mutex_);
  if (invalid_) return cudaErrorStreamCaptureInvalidated;
  Branch& branch = branch_of(stream);
  branch.behind.insert(works_++);
  graph_.pieces.push_back({GraphPiece::Kind::work, branch.number, std::move(make), vital, 0});
  return cudaSuccess;
}

cudaError_t Capture::record(const Stream& stream, std::size_t& point) {
  const std::lock_guard lock(mutex_);
  if (invalid_) return cudaErrorStreamCaptureInvalidated;
  const Branch& branch = branch_of(stream);
  point = points_.size();
  points_.push_back(branch.behind);
  graph_.pieces.push_back({GraphPiece::Kind::record, branch.number, {}, false, point});
  graph_.points = points_.size();
  return cudaSuccess;
}

cudaError_t Capture::wait(const std::shared_ptr<Stream>& stream, std::size_t point) {
  const std::lock_guard lock(mutex_);
  if (invalid_) return cudaErrorStreamCaptureInvalidated;
  auto found = branches_.find(stream.get());
  if (found == branches_.end()) {
    found = branches_.emplace(stream.get(), Branch{stream, graph_.branches++, {}}).first;
    stream->set_capture(shared_from_this());
  }
  Branch& branch = found->second;
  branch.behind.insert(points_[point].begin(), points_[point].end());
  graph_.pieces.push_back({GraphPiece::Kind::wait, branch.number, {}, false, point});
  return cudaSuccess;
}

cudaError_t Capture::end(const Stream& stream, std::optional<CapturedGraph>& graph) {
  if (&stream != origin_.get()) {
    invalidate();
    return refused(cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture",
                   "the capture did not begin on this stream");
  }
  if (mode_ != cudaStreamCaptureModeRelaxed && !is_of_this_thread()) {
    return refused(cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture",
                   "the capture is another thread's");
  }
  {
    const std::lock_guard lock(captures().mutex);
    std::erase(captures().all, shared_from_this());
  }
  return finish(graph);
}

cudaError_t Capture::finish(std::optional<CapturedGraph>& graph) {
  const std::lock_guard lock(mutex_);
  over_ = true;
  for (const auto& [stream, branch] : branches_) branch.stream->set_capture(nullptr);
  const CapturedGraph made = std::move(graph_);  // events may keep this object
  graph_ = {};
  if (invalid_) return cudaErrorStreamCaptureInvalidated;
  if (branch_of(*origin_).behind.size() != works_) {
    return refused(cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture",
                   str(works_ - branch_of(*origin_).behind.size(), " of ", works_,
                       " pieces of work are on streams that the first one has not waited for"));
  }
  graph = made;
  return cudaSuccess;
}

cudaError_t push_work(const std::shared_ptr<Stream>& stream, const char* function, Stream::Work work,
                      bool vital) {
  if (const auto capture = stream->capture())
    return capture->add(
        *stream, [work = std::move(work)] { return work; }, vital);
  Gpu& device = gpu(stream->device());
  if (device.is_default_stream(*stream)) {
    std::vector<std::shared_ptr<Capture>> waited_for;
    for (const auto& capture : captures_under_way())
      if (capture->has_blocking_stream(stream->device())) waited_for.push_back(capture);
    if (!waited_for.empty())
      return ends(waited_for, cudaErrorStreamCaptureImplicit, function,
                  "the default stream waits for a stream that is captured");
  }
  device.push(stream, [&](Stream& to) { to.push(std::move(work), vital); });
  return cudaSuccess;
}

cudaError_t refuse_unsafe(const char* function) {
  if (t_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  std::vector<std::shared_ptr<Capture>> forbidding;
  for (const auto& capture : captures_under_way()) {
    const bool forbids = capture->is_of_this_thread() ? capture->mode() != cudaStreamCaptureModeRelaxed
                                                      : t_mode == cudaStreamCaptureModeGlobal &&
                                                            capture->mode() == cudaStreamCaptureModeGlobal;
    if (forbids) forbidding.push_back(capture);
  }
  if (forbidding.empty()) return cudaSuccess;
  return ends(forbidding, cudaErrorStreamCaptureUnsupported, function, "is unsafe during a capture");
}

cudaError_t refuse_waiting(const Stream& stream, const char* function) {
  if (const auto capture = stream.capture())
    return ends({capture}, cudaErrorStreamCaptureUnsupported, function, "the stream is captured");
  return refuse_unsafe(function);
}

cudaError_t refuse_waiting_for_device(int device, const char* function) {
  for (const auto& stream : gpu(device).streams())
    if (const cudaError_t error = stream->capture() ? refuse_waiting(*stream, function) : cudaSuccess)
      return error;
  return refuse_unsafe(function);
}

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) {
  return std::exchange(t_mode, mode);
}

}  // namespace cp::emulated
