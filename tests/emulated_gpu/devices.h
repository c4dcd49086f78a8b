// The emulated GPUs of this process. How many there are, and what they have, is read from the environment
// once:
//   CP_EMULATED_GPUS              how many (8)
//   CP_EMULATED_GPU_MEMORY        bytes of each (16 GiB)
//   CP_EMULATED_GPU_CAPABILITY    compute capability ("9.0"), or one for each GPU ("8.0,9.0"): those without
//                                 one have the last
//   CP_EMULATED_BUILD_MS          how long fused attention takes to build (0), or one for each GPU, as above
//
// Stricter than a GPU, never laxer: addresses are checked, a child made by fork has no GPU, and a failed
// device stays failed.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/emulated_gpu/emulated_stream.h"
#include "tests/emulated_gpu/streams.h"

namespace cp::emulated {

// Thrown by work: becomes the sticky error of its device.
class DeviceFailure : public std::runtime_error {
 public:
  DeviceFailure(cudaError_t error, const std::string& what) : std::runtime_error(what), code(error) {}
  cudaError_t code;
};

class Gpu {
 public:
  explicit Gpu(int number) : number_(number) {}

  // By handle; null where there is none. 0 and cudaStreamLegacy are the default stream.
  std::shared_ptr<Stream> stream(cudaStream_t handle);
  cudaStream_t create_stream(unsigned flags, int priority);
  bool destroy_stream(cudaStream_t handle);  // its work still runs
  bool is_default_stream(const Stream& stream) const;
  std::vector<std::shared_ptr<Stream>> streams();
  // Of an executable graph, without a handle; given back, its work still runs.
  std::shared_ptr<Stream> create_branch();
  void give_back(std::vector<std::shared_ptr<Stream>> branches);

  // Enqueues with the rules of the default stream: its work starts after that of all streams without
  // cudaStreamNonBlocking, and theirs after it. `sync` is called with the lock held, after the waits that
  // this asks for.
  void push(const std::shared_ptr<Stream>& stream, const std::function<void(Stream&)>& sync);

  cudaError_t error() const;  // sticky
  std::string failure() const;
  void fail(cudaError_t code,
            const std::string& what);  // says so on stderr; work that has not begun is dropped
  void reset();                        // forgets the failure

 private:
  std::shared_ptr<Stream> make_stream(unsigned flags, int priority);
  void reap();  // ends threads of destroyed streams that have finished

  const int number_;
  mutable std::mutex mutex_;
  std::shared_ptr<Stream> default_stream_;
  std::shared_ptr<Record> default_tail_;
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Stream>> destroyed_;
  cudaError_t error_ = cudaSuccess;
  std::string failure_;
};

int device_count();
Gpu& gpu(int device);  // one of device_count()
int current_device();
int compute_capability(int device = current_device());  // 90
// How long fused attention takes to build, for a test that has ranks prepare unevenly.
std::chrono::milliseconds build_time(int device = current_device());
void set_build_time(int device, std::chrono::milliseconds time);
void set_current_device(int device);
std::shared_ptr<Stream> find_stream(cudaStream_t handle);  // of any device; the default one of the current
bool in_host_function();               // whether this thread runs a function of cudaLaunchHostFunc
bool forked();                         // whether this process was forked from one that used its GPUs
void say(const std::string& message);  // on stderr, as the emulated GPU

// Frame of the interface's functions: what is wrong with the device or the thread comes first, errors are
// kept for cudaGetLastError.
cudaError_t refusal_of_call();
cudaError_t& last_error();  // of the thread
// `function` is what counts as called (call_counts.h): the function that this is the frame of.
template <class F>
cudaError_t call(const F& body, const char* function = __builtin_FUNCTION()) {
  const Inside inside(function);
  cudaError_t error = refusal_of_call();
  if (error == cudaSuccess) error = body();
  if (error != cudaSuccess) last_error() = error;
  return error;
}
// For a body: says what was wrong, and returns the code.
cudaError_t refused(cudaError_t code, const char* function, const std::string& why);

void enqueue_host_function(cudaStream_t stream, cudaHostFn_t function, void* data);

}  // namespace cp::emulated
