// What the emulated GPU adds to CUDA's runtime interface: work of any kind on a stream, which is how emulated
// kernels and collectives run. The rest is the interface itself (cuda_runtime_api.h, nccl.h), implemented on
// the host.
#pragma once

#include <chrono>
#include <functional>

#include <cuda_runtime_api.h>

namespace cp::emulated {

// What the emulation does on the thread that calls it, a GPU's libraries do elsewhere or not at all. A test
// that counts what the caller's thread does leaves out what happens inside.
class Inside {
 public:
  // With a name it is a call of that function, which is counted unless it is inside of another one
  // (call_counts.h).
  explicit Inside(const char* function = nullptr);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};
bool is_inside();  // this thread

// The next cudaEventSynchronize() of this thread returns so much later than its event has happened, as where
// the thread loses its processor meanwhile.
void be_late(std::chrono::milliseconds time);

// Enqueues; the work runs on the stream's thread, after what was enqueued before it. `stream` 0 is the
// default stream of the thread's device. An exception of the work becomes a sticky error of the device, as a
// failed kernel's would.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace cp::emulated
