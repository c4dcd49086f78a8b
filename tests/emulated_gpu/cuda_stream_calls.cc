// CUDA's runtime interface: streams and events.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_stream.h"

using namespace cp::emulated;
using cp::str;

namespace {

struct Event {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Record> latest;  // null: never recorded, which counts as done
};

struct Events {
  std::mutex mutex;
  std::map<cudaEvent_t, std::unique_ptr<Event>> events;
};

Events& events() {
  static auto& all = *new Events;
  return all;
}

thread_local std::chrono::milliseconds t_late{0};  // be_late()

// The event at this moment; nothing where there is no such event.
std::optional<Event> find_event(cudaEvent_t handle) {
  const std::lock_guard lock(events().mutex);
  const auto found = events().events.find(handle);
  if (found == events().events.end()) return std::nullopt;
  return *found->second;
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int priority) {
  return call([&] {
    if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) return cudaErrorInvalidValue;
    *stream = gpu(current_device()).create_stream(flags, priority);
    return cudaSuccess;
  });
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  return call([&] {
    if (event == nullptr) return cudaErrorInvalidValue;
    auto made = std::make_unique<Event>();
    made->device = current_device();
    made->timed = (flags & cudaEventDisableTiming) == 0;
    *event = reinterpret_cast<cudaEvent_t>(made.get());
    const std::lock_guard lock(events().mutex);
    events().events.emplace(*event, std::move(made));
    return cudaSuccess;
  });
}

}  // namespace

void cp::emulated::be_late(std::chrono::milliseconds time) { t_late = time; }

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create_stream(stream, cudaStreamDefault, 0); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create_stream(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&] {
    const auto found = stream != nullptr ? find_stream(stream) : nullptr;
    const bool destroyed = found && gpu(found->device()).destroy_stream(stream);
    return destroyed ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call([&] {
    const auto found = find_stream(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    *priority = found->priority();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return call([&] {
    const auto found = find_stream(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    *flags = found->flags();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return call([&] {
    const auto found = find_stream(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    *device = found->device();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&] {
    const auto found = find_stream(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    found->finish();
    return gpu(found->device()).error();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&] {
    const auto found = find_stream(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    const bool idle = found->idle();
    if (const cudaError_t error = gpu(found->device()).error()) return error;
    return idle ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call([&] {
    const auto found = find_stream(stream);
    const auto awaited = find_event(event);
    if (!found || !awaited) return cudaErrorInvalidResourceHandle;
    if (awaited->latest) gpu(found->device()).push(found, [&](Stream& to) { to.wait_for(awaited->latest); });
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call([&] {
    if (!find_stream(stream)) return cudaErrorInvalidResourceHandle;
    enqueue_host_function(stream, function, data);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return create_event(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return create_event(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&] {
    const std::lock_guard lock(events().mutex);
    return events().events.erase(event) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&] {
    const auto found = find_stream(stream);
    const auto recorded = find_event(event);
    if (!found || !recorded) return cudaErrorInvalidResourceHandle;
    if (recorded->device != found->device())
      return refused(cudaErrorInvalidResourceHandle, "cudaEventRecord",
                     str("an event of GPU ", recorded->device, " on a stream of GPU ", found->device()));
    gpu(found->device()).push(found, [&](Stream& to) {
      const std::lock_guard lock(events().mutex);
      const auto place = events().events.find(event);
      if (place != events().events.end()) place->second->latest = to.record();
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&] {
    const auto found = find_event(event);
    if (!found) return cudaErrorInvalidResourceHandle;
    const bool done = !found->latest || found->latest->done();
    if (const cudaError_t error = gpu(found->device).error()) return error;
    return done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&] {
    const auto found = find_event(event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (found->latest) found->latest->wait();
    std::this_thread::sleep_for(std::exchange(t_late, {}));
    return gpu(found->device).error();
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return call([&] {
    const auto first = find_event(start), last = find_event(end);
    if (!first || !last || !first->timed || !last->timed || !first->latest || !last->latest)
      return cudaErrorInvalidResourceHandle;
    if (!first->latest->done() || !last->latest->done()) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> elapsed = last->latest->time() - first->latest->time();
    *ms = elapsed.count();
    return cudaSuccess;
  });
}

}  // extern "C"
