// How the project's kernels are written and started, on a GPU by nvcc and, for tests without one, on the host
// by any compiler.
//
// A kernel is a struct of plain values with
//   static constexpr int kThreads;                    threads of a block
//   static constexpr const char* kName;               for messages
//   CP_DEVICE void operator()(Block& block) const;    what each block does
// and, where the compiler's own choice of registers is too small for the reads that a thread is to have under
// way, kLeastBlocks: for how many blocks a multiprocessor is to have registers (__launch_bounds__).
// The body runs on every thread and consists of phases. In a phase each thread runs the same function, and
// the next phase begins when all threads have ended it. What one phase leaves for the next lies in shared
// memory or in a PerThread; all other values outside of phases must be equal on all threads. On the host a
// phase is a loop over the threads. A phase may also run warp by warp (for_each_warp). Then it consists of
// steps, each of which all 32 lanes run before the next one begins: functions of one lane (for_each_lane),
// and operations of a whole warp (mma.h). What one step leaves for the next lies in a PerThread or a PerLane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_error.h"
#include "shared/base/error.h"

#if defined(__CUDACC__)
#define CP_DEVICE __device__ __forceinline__
#define CP_DEVICE_CALL __device__ __noinline__ inline
#define CP_UNROLL _Pragma("unroll")
#define CP_NO_UNROLL _Pragma("unroll 1")
#else
#include <memory>
#include <vector>
#define CP_DEVICE inline
#define CP_DEVICE_CALL inline
#define CP_UNROLL
#define CP_NO_UNROLL
#endif

namespace cp::emulated {
// Belongs to the emulated GPU, tests/emulated_gpu/emulated_stream.h.
#if !defined(__CUDACC__)
// Copies `size_bytes` of the arguments, and enqueues run(the copy).
void enqueue_kernel(cudaStream_t stream, const void* arguments, std::size_t size_bytes,
                    void (*run)(const void*));
#endif
}  // namespace cp::emulated

namespace cp::runtime {

// Loads, on the current device, every kernel of the project that this program may launch. Otherwise CUDA
// would load each kernel at its first launch, for which the host may have to wait until the device is idle.
// Throws as check_cuda() if the program has no kernels for the device.
void load_kernels();
// Adds `kernel` to those that load_kernels() loads, and returns true.
bool register_kernel(const void* kernel);

struct Grid {
  std::int64_t blocks = 0;  // if 0, nothing is launched
  int shared_bytes = 0;     // of each block; at most 48 KiB
};

inline constexpr int kWarpThreads = 32;

#if defined(__CUDACC__)

class Warp {
 public:
  // Runs a step: f(thread) on each lane, with the lane's number in the block.
  template <class F>
  CP_DEVICE void for_each_lane(F&& f) const {
    f(static_cast<int>(threadIdx.x));
  }
};

class Block {
 public:
  CP_DEVICE std::int64_t index() const { return blockIdx.x; }
  CP_DEVICE int threads() const { return static_cast<int>(blockDim.x); }

  // Runs a phase: f(thread) on each of the threads.
  template <class F>
  CP_DEVICE void for_each_thread(F&& f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  // The same: f(warp) on each warp.
  template <class F>
  CP_DEVICE void for_each_warp(F&& f) const {
    f(Warp());
    __syncthreads();
  }
  // Runs the last phase of a block, behind which no barrier is needed.
  template <class F>
  CP_DEVICE void last(F&& f) const {
    f(static_cast<int>(threadIdx.x));
  }
  // Shared memory from the given byte on. It has Grid::shared_bytes bytes in all, which are not set at first.
  template <class T>
  CP_DEVICE T* shared(int offset_bytes = 0) const {
    extern __shared__ uint4 cp_shared_memory[];
    return reinterpret_cast<T*>(reinterpret_cast<char*>(cp_shared_memory) + offset_bytes);
  }
};

// A value of each thread that lives longer than a phase. It is in registers if the compiler knows all
// indices.
template <class T>
class PerThread {
 public:
  CP_DEVICE explicit PerThread(const Block&) {}
  CP_DEVICE T& operator[](int) { return value_; }

 private:
  T value_;
};

// A value of each lane that lives within a phase of warps.
template <class T>
class PerLane {
 public:
  CP_DEVICE T& operator[](int) { return value_; }

 private:
  T value_;
};

template <class Body>
constexpr int least_blocks() {
  if constexpr (requires { Body::kLeastBlocks; }) return Body::kLeastBlocks;
  return 0;  // the compiler chooses
}

template <class Body>
__global__ void __launch_bounds__(Body::kThreads, least_blocks<Body>())
    run_body(const __grid_constant__ Body body) {
  Block block;
  body(block);
}

template <class Body>
inline const bool kIsRegistered = register_kernel(reinterpret_cast<const void*>(&run_body<Body>));

#else

class Warp {
 public:
  explicit Warp(int first_thread) : first_thread_(first_thread) {}
  template <class F>
  void for_each_lane(F&& f) const {
    for (int lane = 0; lane < kWarpThreads; ++lane) f(first_thread_ + lane);
  }

 private:
  int first_thread_;
};

class Block {
 public:
  Block(std::int64_t index, int threads, int shared_bytes)
      : index_(index),
        threads_(threads),
        shared_(std::make_unique<Chunk[]>((static_cast<std::size_t>(shared_bytes) + sizeof(Chunk) - 1) /
                                          sizeof(Chunk))) {}

  std::int64_t index() const { return index_; }
  int threads() const { return threads_; }

  // Every second phase runs backwards, so that a phase whose threads need one another's results fails tests.
  template <class F>
  void for_each_thread(F&& f) {
    backwards_ = !backwards_;
    for (int i = 0; i < threads_; ++i) f(backwards_ ? threads_ - 1 - i : i);
  }
  template <class F>
  void for_each_warp(F&& f) {
    backwards_ = !backwards_;
    const int warps = threads_ / kWarpThreads;
    for (int i = 0; i < warps; ++i) f(Warp((backwards_ ? warps - 1 - i : i) * kWarpThreads));
  }
  template <class F>
  void last(F&& f) {
    for_each_thread(f);
  }
  template <class T>
  T* shared(int offset_bytes = 0) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(shared_.get()) + offset_bytes);
  }

 private:
  struct alignas(16) Chunk {
    std::uint64_t words[2] = {0xFBFBFBFBFBFBFBFB, 0xFBFBFBFBFBFBFBFB};
  };
  std::int64_t index_;
  int threads_;
  bool backwards_ = false;
  std::unique_ptr<Chunk[]> shared_;
};

template <class T>
class PerThread {
 public:
  explicit PerThread(const Block& block) : values_(static_cast<std::size_t>(block.threads())) {}
  T& operator[](int thread) { return values_[static_cast<std::size_t>(thread)]; }

 private:
  std::vector<T> values_;
};

template <class T>
class PerLane {
 public:
  T& operator[](int thread) { return values_[thread % kWarpThreads]; }

 private:
  T values_[kWarpThreads];
};

#endif

// Enqueues the kernel. Its values are copied, so `body` need not live on. Throws as check_cuda() if it cannot
// be started. The limits are CUDA's: 4096 bytes of parameters (on devices before sm70, and with CUDA before
// 12.1), 2^31 - 1 blocks along x, and 48 KiB of shared memory, above which a kernel would need an attribute
// of its own.
template <class Body>
void launch(cudaStream_t stream, const Grid& grid, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= 4096);
  constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;
  constexpr int kMaxSharedBytes = 48 * 1024;
  CP_INVARIANT(grid.blocks >= 0 && grid.blocks <= kMaxBlocks && grid.shared_bytes <= kMaxSharedBytes,
               Body::kName, " with ", grid.blocks, " blocks and ", grid.shared_bytes,
               " bytes of shared memory");
  if (grid.blocks == 0) return;
#if defined(__CUDACC__)
  static_cast<void>(&kIsRegistered<Body>);
  void* arguments[] = {const_cast<Body*>(&body)};
  check_cuda(cudaLaunchKernel(reinterpret_cast<const void*>(&run_body<Body>),
                              dim3(static_cast<unsigned>(grid.blocks)), dim3(Body::kThreads), arguments,
                              static_cast<std::size_t>(grid.shared_bytes), stream),
             Body::kName);
#else
  struct Arguments {
    Grid grid;
    Body body;
  };
  const Arguments arguments{grid, body};
  emulated::enqueue_kernel(stream, &arguments, sizeof(arguments), [](const void* copy) {
    const auto& its = *static_cast<const Arguments*>(copy);
    for (std::int64_t index = 0; index < its.grid.blocks; ++index) {
      Block block(index, Body::kThreads, its.grid.shared_bytes);
      its.body(block);
    }
  });
#endif
}

}  // namespace cp::runtime
