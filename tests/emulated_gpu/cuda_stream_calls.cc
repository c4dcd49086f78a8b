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
#include "tests/emulated_gpu/capture.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_stream.h"

using namespace cp::emulated;
using cp::str;

namespace {

struct Event {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Record> latest;  // null: never recorded, which counts as done
  // Not null where the latest record is part of a capture, and no moment of the device's: its number there.
  std::shared_ptr<Capture> capture;
  std::size_t point = 0;
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
  return call(
      [&] {
        if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
          return cudaErrorInvalidValue;
        *stream = gpu(current_device()).create_stream(flags, priority);
        return cudaSuccess;
      },
      "cudaStreamCreate");
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  return call(
      [&] {
        if (event == nullptr) return cudaErrorInvalidValue;
        auto made = std::make_unique<Event>();
        made->device = current_device();
        made->timed = (flags & cudaEventDisableTiming) == 0;
        *event = reinterpret_cast<cudaEvent_t>(made.get());
        const std::lock_guard lock(events().mutex);
        events().events.emplace(*event, std::move(made));
        return cudaSuccess;
      },
      "cudaEventCreate");
}

// The event is a moment of no device: refused, and the end of its capture.
cudaError_t refuse_captured(const Event& event, const char* function) {
  if (!event.capture) return cudaSuccess;
  if (!event.capture->is_over()) event.capture->invalidate();
  return refused(cudaErrorCapturedEvent, function, "the event was last recorded in a capture");
}

// A wait of a stream that is captured, or for an event that was.
cudaError_t wait_in_capture(const std::shared_ptr<Stream>& stream, const Event& awaited) {
  const auto capture = stream->capture();
  const auto refuse = [&](cudaError_t error, const char* why) {
    if (capture) capture->invalidate();
    return refused(error, "cudaStreamWaitEvent", why);
  };
  if (!awaited.capture && !awaited.latest) return cudaSuccess;
  if (!awaited.capture)
    return refuse(cudaErrorStreamCaptureIsolation, "the stream is captured, and the event is not");
  if (awaited.capture->is_over())
    return refuse(cudaErrorCapturedEvent, "the event was recorded in a capture that has ended");
  if (capture && capture != awaited.capture)
    return refuse(cudaErrorStreamCaptureMerge, "stream and event are in two captures");
  return awaited.capture->wait(stream, awaited.point);
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
    if (found && found->capture()) return refuse_waiting(*found, "cudaStreamDestroy");
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
    if (const cudaError_t error = refuse_waiting(*found, "cudaStreamSynchronize")) return error;
    found->finish();
    return gpu(found->device()).error();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&] {
    const auto found = find_stream(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = refuse_waiting(*found, "cudaStreamQuery")) return error;
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
    if (found->capture() || awaited->capture) return wait_in_capture(found, *awaited);
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
    if (const auto capture = found->capture()) {
      std::size_t point = 0;
      if (const cudaError_t error = capture->record(*found, point)) return error;
      const std::lock_guard lock(events().mutex);
      const auto place = events().events.find(event);
      if (place == events().events.end()) return cudaErrorInvalidResourceHandle;
      place->second->latest = nullptr;
      place->second->capture = capture;
      place->second->point = point;
      return cudaSuccess;
    }
    gpu(found->device()).push(found, [&](Stream& to) {
      const std::lock_guard lock(events().mutex);
      const auto place = events().events.find(event);
      if (place == events().events.end()) return;
      place->second->latest = to.record();
      place->second->capture = nullptr;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags == cudaEventRecordDefault) return cudaEventRecord(event, stream);
  return call([&] {
    return refused(cudaErrorInvalidValue, "cudaEventRecordWithFlags", "external events are not emulated");
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&] {
    const auto found = find_event(event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = refuse_captured(*found, "cudaEventQuery")) return error;
    if (const cudaError_t error = refuse_unsafe("cudaEventQuery")) return error;
    const bool done = !found->latest || found->latest->done();
    if (const cudaError_t error = gpu(found->device).error()) return error;
    return done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&] {
    const auto found = find_event(event);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = refuse_captured(*found, "cudaEventSynchronize")) return error;
    if (const cudaError_t error = refuse_unsafe("cudaEventSynchronize")) return error;
    if (found->latest) found->latest->wait();
    std::this_thread::sleep_for(std::exchange(t_late, {}));
    return gpu(found->device).error();
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return call([&] {
    const auto first = find_event(start), last = find_event(end);
    for (const auto& event : {first, last}) {
      if (const cudaError_t error = event ? refuse_captured(*event, "cudaEventElapsedTime") : cudaSuccess)
        return error;
    }
    if (!first || !last || !first->timed || !last->timed || !first->latest || !last->latest)
      return cudaErrorInvalidResourceHandle;
    if (!first->latest->done() || !last->latest->done()) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> elapsed = last->latest->time() - first->latest->time();
    *ms = elapsed.count();
    return cudaSuccess;
  });
}

}  // extern "C"
