// CUDA's runtime interface: devices and errors.
#include <algorithm>
#include <cstdio>
#include <string>

#include <cuda_runtime_api.h>

#include "shared/base/text.h"
#include "tests/emulated_gpu/capture.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/devices.h"

using namespace cp::emulated;

namespace {

constexpr int kMultiprocessors = 132;

bool is_device(int device) { return device >= 0 && device < device_count(); }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  if (forked()) return last_error() = cudaErrorInitializationError;
  return *count > 0 ? cudaSuccess : last_error() = cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device) {
  return call([&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    set_current_device(device);
    return gpu(device).error();
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call([&] {
    *device = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call([&] {
    if (const cudaError_t error = refuse_waiting_for_device(current_device(), "cudaDeviceSynchronize"))
      return error;
    Gpu& device = gpu(current_device());
    for (const auto& stream : device.streams()) stream->finish();
    return device.error();
  });
}

cudaError_t cudaDeviceReset() {
  Gpu& device = gpu(current_device());
  for (const auto& stream : device.streams()) stream->finish();
  device.reset();
  last_error() = cudaSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    *properties = {};
    const std::string name = cp::str("Emulated GPU (sm_", compute_capability(device), ")");
    std::copy(name.begin(), name.end(), properties->name);
    properties->major = compute_capability(device) / 10;
    properties->minor = compute_capability(device) % 10;
    properties->totalGlobalMem = device_memory().limit();
    properties->multiProcessorCount = kMultiprocessors;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->sharedMemPerMultiprocessor = 228 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 64 << 10;
    properties->l2CacheSize = 50 << 20;
    properties->memoryBusWidth = 5120;
    properties->pciBusID = device + 1;
    properties->unifiedAddressing = 1;
    properties->concurrentKernels = 1;
    properties->asyncEngineCount = 3;
    properties->streamPrioritiesSupported = 1;
    std::fill(properties->maxThreadsDim, properties->maxThreadsDim + 2, 1024);
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = properties.memoryBusWidth;
      return cudaSuccess;
    case cudaDevAttrClockRate:
      *value = 1'980'000;  // kHz
      return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
      *value = 2'619'000;
      return cudaSuccess;
    case cudaDevAttrPciBusId:
      *value = properties.pciBusID;
      return cudaSuccess;
    default:
      return call([&] {
        return refused(cudaErrorInvalidValue, "cudaDeviceGetAttribute",
                       cp::str("attribute ", static_cast<int>(attribute), " is not emulated"));
      });
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return call([&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return call([&] {
    if (!is_device(device) || !is_device(peer)) return cudaErrorInvalidDevice;
    *can_access = device != peer ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call([&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = device_count() > 0 ? CUDART_VERSION : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const Inside inside("cudaGetLastError");
  const cudaError_t error = cudaPeekAtLastError();
  last_error() = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  if (device_count() > 0 && !forked())
    if (const cudaError_t sticky = gpu(current_device()).error()) return sticky;
  return last_error();
}

// Kernels are the host's functions here, and loaded as such.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return last_error() = cudaErrorInvalidDeviceFunction;
}

#define CP_ERRORS(X)                                                                                     \
  X(cudaSuccess, "no error")                                                                             \
  X(cudaErrorInvalidValue, "invalid argument")                                                           \
  X(cudaErrorMemoryAllocation, "out of memory")                                                          \
  X(cudaErrorInitializationError, "initialization error")                                                \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                     \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                             \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                                    \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                           \
  X(cudaErrorNotReady, "device not ready")                                                               \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                 \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                                \
  X(cudaErrorNotPermitted, "operation not permitted")                                                    \
  X(cudaErrorNotSupported, "operation not supported")                                                    \
  X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped") \
  X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")       \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")               \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")        \
  X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")      \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")             \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")          \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")   \
  X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing one")  \
  X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture from another thread")

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CP_NAME(code, text) \
  case code:                \
    return #code;
    CP_ERRORS(CP_NAME)
#undef CP_NAME
    default:
      return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define CP_TEXT(code, text) \
  case code:                \
    return text;
    CP_ERRORS(CP_TEXT)
#undef CP_TEXT
    default:
      return "unrecognized error code";
  }
}

}  // extern "C"
