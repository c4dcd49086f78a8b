// What the emulated GPU adds to CUDA's runtime interface: work of any kind on a stream, which is how emulated
// kernels and collectives run. The rest is the interface itself (cuda_runtime_api.h, nccl.h), implemented on
// the host.
#pragma once

#include <functional>

#include <cuda_runtime_api.h>

namespace cp::emulated {

// Enqueues; the work runs on the stream's thread, after what was enqueued before it. `stream` 0 is the
// default stream of the thread's device. An exception of the work becomes a sticky error of the device, as a
// failed kernel's would.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace cp::emulated
