#include "tests/emulated_gpu/devices.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <unistd.h>
#include <utility>

#include "shared/base/text.h"
#include "tests/emulated_gpu/call_counts.h"
#include "tests/emulated_gpu/capture.h"
#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::emulated {
namespace {

thread_local int t_device = 0;
thread_local bool t_in_host_function = false;
thread_local cudaError_t t_last_error = cudaSuccess;
thread_local int t_inside = 0;

struct Gpus {
  Gpus() {
    const char* count = std::getenv("CP_EMULATED_GPUS");
    const long wanted = count != nullptr ? std::strtol(count, nullptr, 10) : 8;
    for (int i = 0; i < wanted; ++i) gpus.push_back(std::make_unique<Gpu>(i));
    if (const char* text = std::getenv("CP_EMULATED_GPU_CAPABILITY")) {
      capabilities.clear();
      for (const std::string_view one : split(text, ','))
        capabilities.push_back(static_cast<int>(std::strtod(std::string(one).c_str(), nullptr) * 10 + 0.5));
    }
    const char* build = std::getenv("CP_EMULATED_BUILD_MS");
    const std::vector<std::string_view> times = split(build != nullptr ? build : "0", ',');
    for (std::size_t i = 0; i < gpus.size(); ++i)
      build_ms.emplace_back(parse_int(times[std::min(i, times.size() - 1)], "CP_EMULATED_BUILD_MS"));
  }
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::vector<int> capabilities = {90};
  std::deque<std::atomic<std::int64_t>> build_ms;
  pid_t process = getpid();
};

Gpus& gpus() {
  static auto& all = *new Gpus;  // streams use it until the process ends
  return all;
}

bool is_default(cudaStream_t handle) { return handle == nullptr || handle == cudaStreamLegacy; }

}  // namespace

void say(const std::string& message) { std::fprintf(stderr, "emulated GPU: %s\n", message.c_str()); }

int device_count() { return static_cast<int>(gpus().gpus.size()); }
int compute_capability(int device) {
  const std::vector<int>& all = gpus().capabilities;
  return all[std::min(static_cast<std::size_t>(device), all.size() - 1)];
}
std::chrono::milliseconds build_time(int device) {
  return std::chrono::milliseconds(gpus().build_ms.at(static_cast<std::size_t>(device)).load());
}
void set_build_time(int device, std::chrono::milliseconds time) {
  gpus().build_ms.at(static_cast<std::size_t>(device)).store(time.count());
}
Gpu& gpu(int device) { return *gpus().gpus.at(static_cast<std::size_t>(device)); }
int current_device() { return t_device; }
void set_current_device(int device) { t_device = device; }
bool in_host_function() { return t_in_host_function; }
bool forked() { return gpus().process != getpid(); }
cudaError_t& last_error() { return t_last_error; }

std::shared_ptr<Stream> Gpu::make_stream(unsigned flags, int priority) {
  return std::make_shared<Stream>(number_, flags, priority, [this](const Stream::Work& work, bool vital) {
    if (error() != cudaSuccess && !vital) return;
    t_device = number_;
    try {
      work();
    } catch (const DeviceFailure& failure) {
      fail(failure.code, failure.what());
    } catch (const std::exception& failure) {
      fail(cudaErrorLaunchFailure, failure.what());
    }
  });
}

std::shared_ptr<Stream> Gpu::stream(cudaStream_t handle) {
  const std::lock_guard lock(mutex_);
  if (is_default(handle)) {
    if (!default_stream_) default_stream_ = make_stream(cudaStreamDefault, 0);
    return default_stream_;
  }
  const auto found = streams_.find(handle);
  return found != streams_.end() ? found->second : nullptr;
}

cudaStream_t Gpu::create_stream(unsigned flags, int priority) {
  reap();
  auto stream = make_stream(flags, priority);
  auto* handle = reinterpret_cast<cudaStream_t>(stream.get());
  const std::lock_guard lock(mutex_);
  streams_.emplace(handle, std::move(stream));
  return handle;
}

bool Gpu::is_default_stream(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return default_stream_.get() == &stream;
}

bool Gpu::destroy_stream(cudaStream_t handle) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(handle);
    if (found == streams_.end()) return false;
    destroyed_.push_back(std::move(found->second));
    streams_.erase(found);
  }
  reap();
  return true;
}

void Gpu::reap() {
  std::vector<std::shared_ptr<Stream>> finished;
  const std::lock_guard lock(mutex_);
  for (auto& stream : destroyed_)
    if (stream->idle()) finished.push_back(std::move(stream));
  std::erase(destroyed_, nullptr);
}

std::shared_ptr<Stream> Gpu::create_branch() { return make_stream(cudaStreamNonBlocking, 0); }

void Gpu::give_back(std::vector<std::shared_ptr<Stream>> branches) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& branch : branches) destroyed_.push_back(std::move(branch));
  }
  reap();
}

std::vector<std::shared_ptr<Stream>> Gpu::streams() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Stream>> all = destroyed_;
  for (const auto& [handle, stream] : streams_) all.push_back(stream);
  if (default_stream_) all.push_back(default_stream_);
  return all;
}

void Gpu::push(const std::shared_ptr<Stream>& stream, const std::function<void(Stream&)>& sync) {
  const std::lock_guard lock(mutex_);
  const bool blocking = (stream->flags() & cudaStreamNonBlocking) == 0;
  if (stream == default_stream_) {
    for (const auto& [handle, other] : streams_)
      if ((other->flags() & cudaStreamNonBlocking) == 0 && !other->idle()) stream->wait_for(other->record());
  } else if (blocking && default_tail_) {
    stream->wait_for(default_tail_);
  }
  sync(*stream);
  if (stream == default_stream_) default_tail_ = stream->record();
}

cudaError_t Gpu::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::string Gpu::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Gpu::fail(cudaError_t code, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (error_ != cudaSuccess) return;
  error_ = code;
  failure_ = what;
  say(str("work of GPU ", number_, " failed: ", what));
}

void Gpu::reset() {
  const std::lock_guard lock(mutex_);
  error_ = cudaSuccess;
  failure_.clear();
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle) {
  if (is_default(handle)) return gpu(t_device).stream(handle);
  for (int i = 0; i < device_count(); ++i)
    if (auto stream = gpu(i).stream(handle)) return stream;
  return nullptr;
}

cudaError_t refused(cudaError_t code, const char* function, const std::string& why) {
  say(str(function, ": ", why));
  return code;
}

cudaError_t refusal_of_call() {
  if (forked()) return cudaErrorInitializationError;
  if (in_host_function())
    return refused(cudaErrorNotPermitted, "a function of cudaLaunchHostFunc", "calls CUDA");
  if (device_count() == 0) return cudaErrorNoDevice;
  return gpu(t_device).error();
}

Inside::Inside(const char* function) {
  if (++t_inside == 1 && function != nullptr) count_call(function);
}
Inside::~Inside() { --t_inside; }
bool is_inside() { return t_inside > 0; }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  call(
      [&] {
        const auto found = find_stream(stream);
        if (!found) return refused(cudaErrorInvalidResourceHandle, "launch", "no such stream, or destroyed");
        if (found->device() != t_device)
          return refused(
              cudaErrorInvalidResourceHandle, "launch",
              str("the stream is of GPU ", found->device(), ", the thread's current device is ", t_device));
        return push_work(found, "launch", std::move(work));
      },
      "enqueue");
}

void enqueue_kernel(cudaStream_t stream, const void* arguments, std::size_t size_bytes,
                    void (*run)(const void*)) {
  const Inside inside("kernel");
  const auto* const first = static_cast<const std::byte*>(arguments);
  enqueue(stream, [copy = std::vector<std::byte>(first, first + size_bytes), run] { run(copy.data()); });
}

void enqueue_host_function(cudaStream_t stream, cudaHostFn_t function, void* data) {
  enqueue(stream, [function, data] {
    t_in_host_function = true;
    function(data);
    t_in_host_function = false;
  });
}

}  // namespace cp::emulated
