#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "shared/base/error.h"
#include "tests/emulated_gpu/device_memory.h"
#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::emulated {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

class OwnStream {
 public:
  explicit OwnStream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, flags), cudaSuccess);
  }
  ~OwnStream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // as the interface takes it
  void finish() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

class OwnEvent {
 public:
  explicit OwnEvent(unsigned flags = cudaEventDefault) {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, flags), cudaSuccess);
  }
  ~OwnEvent() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that ends when told.
struct Gate {
  std::atomic<bool> open{false};
  void enqueue_on(cudaStream_t stream) {
    enqueue(stream, [this] {
      while (!open) std::this_thread::sleep_for(1ms);
    });
  }
};

void* allocate(std::size_t size) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, size), cudaSuccess);
  return data;
}

TEST(CudaEmulation, CopiesThroughTheDevice) {
  const std::vector<int> in{1, 2, 3, 4};
  std::vector<int> out(4);
  void* device = allocate(16);
  EXPECT_EQ(cudaMemcpy(device, in.data(), 16, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(out.data(), device, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(out, in);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(CudaEmulation, CopiesRowsBetweenPitches) {
  const std::array<char, 9> in = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'};
  std::array<char, 4> out = {};
  void* device = allocate(4);
  EXPECT_EQ(cudaMemcpy2D(device, 2, in.data(), 3, 2, 2, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(out.data(), device, 4, cudaMemcpyDefault), cudaSuccess);
  EXPECT_THAT(out, ElementsAre('a', 'b', 'd', 'e'));
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(CudaEmulation, AStreamIsAQueueAndStreamsRunBesideEachOther) {
  const OwnStream first, second;
  Gate gate;
  std::vector<int> order;
  gate.enqueue_on(first);
  enqueue(first, [&] { order.push_back(2); });
  enqueue(second, [&] { order.push_back(1); });
  second.finish();
  EXPECT_EQ(cudaStreamQuery(first), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.open = true;
  first.finish();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(CudaEmulation, AWaitIsForTheRecordThatWasLatestAtTheCall) {
  const OwnStream recorded, waits;
  const OwnEvent event;
  Gate first, second;
  std::atomic<int> ran{0};
  EXPECT_EQ(cudaStreamWaitEvent(waits, event, 0), cudaSuccess);  // never recorded: done
  enqueue(waits, [&] { ran = 1; });
  waits.finish();
  EXPECT_EQ(ran, 1);

  first.enqueue_on(recorded);
  EXPECT_EQ(cudaEventRecord(event, recorded), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(waits, event, 0), cudaSuccess);
  enqueue(waits, [&] { ran = 2; });
  second.enqueue_on(recorded);
  EXPECT_EQ(cudaEventRecord(event, recorded), cudaSuccess);  // again, while the wait stands
  EXPECT_EQ(cudaStreamQuery(waits), cudaErrorNotReady);
  EXPECT_EQ(ran, 1);
  first.open = true;
  waits.finish();  // though the second record is not done
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  second.open = true;
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST(CudaEmulation, TheDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  const OwnStream blocking(cudaStreamDefault), free;
  Gate gate;
  std::vector<int> order;
  gate.enqueue_on(blocking);
  enqueue(blocking, [&] { order.push_back(1); });
  enqueue(nullptr, [&] { order.push_back(2); });
  enqueue(blocking, [&] { order.push_back(3); });
  enqueue(free, [] {});
  free.finish();  // waits for nobody
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  gate.open = true;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  static_cast<void>(cudaGetLastError());
}

TEST(CudaEmulation, EventsGiveTimesWhereTheyMay) {
  const OwnStream stream;
  const OwnEvent start, end, untimed(cudaEventDisableTiming), never;
  EXPECT_EQ(cudaEventRecord(start, stream), cudaSuccess);
  enqueue(stream, [] { std::this_thread::sleep_for(20ms); });
  EXPECT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(untimed, stream), cudaSuccess);
  stream.finish();
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, end), cudaSuccess);
  EXPECT_GE(ms, 20);
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, never), cudaErrorInvalidResourceHandle);
  static_cast<void>(cudaGetLastError());
}

TEST(CudaEmulation, MemoryOutOfBoundsOfAnotherKindOrFreedIsRefused) {
  void* device = allocate(16);
  std::array<char, 32> host = {};
  EXPECT_EQ(cudaMemcpy(device, host.data(), 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(static_cast<char*>(device) + 8, 0, 9), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), host.data() + 16, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device, device, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaMemset(device, 0, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaEmulation, MemoryThatIsFreedBeforeItsCopyRunsIsAnIllegalAddress) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    const OwnStream stream;
    Gate gate;
    void* device = allocate(16);
    gate.enqueue_on(stream);
    EXPECT_EQ(cudaMemsetAsync(device, 0, 16, stream), cudaSuccess);
    EXPECT_TRUE(device_memory().free(device, true));  // cudaFree would wait for the copy
    gate.open = true;
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  }
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(CudaEmulation, PageableMemoryMayBeUsedAgainAtOnceAndPinnedMemoryMayNot) {
  const OwnStream stream;
  void* device = allocate(8);
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 4), cudaSuccess);
  Gate gate;
  gate.enqueue_on(stream);
  int pageable = 1;
  std::memcpy(pinned, &pageable, 4);
  EXPECT_EQ(cudaMemcpyAsync(device, &pageable, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(static_cast<char*>(device) + 4, pinned, 4, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  pageable = 2;
  std::memcpy(pinned, &pageable, 4);
  gate.open = true;
  stream.finish();
  std::array<int, 2> out = {};
  EXPECT_EQ(cudaMemcpy(out.data(), device, 8, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_THAT(out, ElementsAre(1, 2));
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST(CudaEmulation, MemoryEnds) {
  const std::size_t before = device_memory().used(0);  // by tests before this one
  device_memory().set_limit(before + 1000);
  std::size_t free = 0, total = 0;
  void* first = allocate(600);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 400U);
  EXPECT_EQ(total, before + 1000);
  void* second = nullptr;
  EXPECT_EQ(cudaMalloc(&second, 401), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 1000), cudaSuccess);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
  EXPECT_THROW(runtime::check_cuda(cudaMalloc(&second, 1001), "cudaMalloc"), InvalidInput);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "what was refused is nothing that the next caller did";
  device_memory().set_limit(std::size_t{16} << 30);
}

TEST(CudaEmulation, AFailureSticksToItsDeviceUntilTheReset) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    const OwnStream stream;
    bool ran = false;
    enqueue(stream, [] { throw std::runtime_error("division by zero"); });
    enqueue(stream, [&] { ran = true; });
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    EXPECT_FALSE(ran);
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(CudaEmulation, WorkForAStreamOfAnotherDeviceIsRefused) {
  const OwnStream stream;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const OwnEvent event;
  enqueue(stream, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaSetDevice(99), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST(CudaEmulation, HostFunctionsRunInOrderAndMayNotCallCuda) {
  const OwnStream stream;
  cudaError_t seen = cudaSuccess;
  const auto function = [](void* data) { *static_cast<cudaError_t*>(data) = cudaDeviceSynchronize(); };
  EXPECT_EQ(cudaLaunchHostFunc(stream, function, &seen), cudaSuccess);
  stream.finish();
  EXPECT_EQ(seen, cudaErrorNotPermitted);
}

TEST(CudaEmulation, HandlesThatAreGoneAreRefused) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace cp::emulated
