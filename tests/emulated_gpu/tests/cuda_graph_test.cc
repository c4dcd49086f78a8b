// Captures and graphs of the emulated CUDA: what they promise, and what they refuse.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/emulated_gpu/call_counts.h"
#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::emulated {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::Pair;

class CudaGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t* stream : {&first_, &second_})
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    for (cudaEvent_t* event : {&event_, &other_})
      ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDefault), cudaSuccess);
  }
  void TearDown() override {
    for (const cudaEvent_t event : {event_, other_}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    for (const cudaStream_t stream : {first_, second_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    static_cast<void>(cudaGetLastError());
  }

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(first_, mode), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(first_, &graph);
    EXPECT_EQ(graph == nullptr, error != cudaSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    return error;
  }
  cudaGraphExec_t executable() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
    cudaGraphExec_t made = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&made, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return made;
  }
  // The second stream takes part in the capture of the first one.
  void fork() {
    EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
  }
  void join() {
    EXPECT_EQ(cudaEventRecord(other_, second_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(first_, other_, 0), cudaSuccess);
  }

  // `call` is refused with this error and ends the capture that is under way.
  void expect_ends_it(cudaError_t error, const std::function<cudaError_t()>& call) {
    begin();
    fork();
    EXPECT_EQ(call(), error) << cudaGetErrorName(error);
    enqueue(first_, [] {});
    EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(first_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);  // both are as they were before
    EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr, other_ = nullptr;
};

TEST_F(CudaGraphs, WhatWasCapturedRunsAtEachLaunchInItsOrder) {
  std::vector<int> order;
  begin();
  enqueue(first_, [&] { order.push_back(1); });
  fork();
  enqueue(second_, [&] {
    std::this_thread::sleep_for(5ms);
    order.push_back(2);
  });
  join();
  enqueue(first_, [&] { order.push_back(3); });
  std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(order.empty());
  const cudaGraphExec_t graph = executable();
  EXPECT_TRUE(order.empty());
  enqueue(second_, [&] { order.push_back(0); });
  EXPECT_EQ(cudaGraphLaunch(graph, second_), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(graph, second_), cudaSuccess);
  enqueue(second_, [&] { order.push_back(4); });
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);  // what runs goes on
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 1, 2, 3, 4));
  EXPECT_EQ(cudaGraphLaunch(graph, second_), cudaErrorInvalidValue);
}

// Launches of one graph follow one another, on whichever streams.
TEST_F(CudaGraphs, AGraphRunsOnceAtATime) {
  std::atomic<int> inside{0}, most{0};
  begin();
  enqueue(first_, [&] {
    most = std::max(most.load(), ++inside);
    std::this_thread::sleep_for(5ms);
    --inside;
  });
  const cudaGraphExec_t graph = executable();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(graph, second_), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(most, 1);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
}

TEST_F(CudaGraphs, WaitingForWhatIsCapturedEndsTheCapture) {
  expect_ends_it(cudaErrorCapturedEvent, [&] { return cudaEventQuery(event_); });
  expect_ends_it(cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(event_); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(second_); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(first_); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [] { return cudaDeviceSynchronize(); });
}

TEST_F(CudaGraphs, UnsafeCallsEndTheCaptureOfTheirThread) {
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 8), cudaSuccess);
  int host = 0;
  void* made = nullptr;
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&made, 8); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocHost(&made, 8); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [&] { return cudaFree(data); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported,
                 [&] { return cudaMemcpy(&host, data, 4, cudaMemcpyDeviceToHost); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported,
                 [&] { return cudaMemcpyAsync(&host, data, 4, cudaMemcpyDeviceToHost, first_); });
  expect_ends_it(cudaErrorStreamCaptureUnsupported, [&] { return cudaEventQuery(other_); });
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// Of another thread they end only a global capture, and not from a thread that has said that it knows.
TEST_F(CudaGraphs, OtherThreadsDisturbOnlyGlobalCaptures) {
  const auto query_elsewhere = [&](bool relaxed) {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      if (relaxed) {
        EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
      }
      error = cudaEventQuery(other_);
    }).join();
    return error;
  };
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(query_elsewhere(false), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(query_elsewhere(true), cudaSuccess);
  EXPECT_EQ(query_elsewhere(false), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaEventQuery(other_), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CudaGraphs, StreamsThatDoNotJoinAgainAreRefused) {
  begin();
  fork();
  enqueue(second_, [] {});
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  begin();
  fork();
  enqueue(second_, [] {});
  join();
  enqueue(second_, [] {});  // behind the join
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  begin();
  fork();  // and gets nothing to do
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CudaGraphs, NoDependencyCrossesTheBorder) {
  EXPECT_EQ(cudaEventRecord(other_, second_), cudaSuccess);
  expect_ends_it(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(first_, other_, 0); });
  // An event of a capture that is over is a moment of no device, until it is recorded anew.
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventRecord(event_, second_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  // Two captures.
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(second_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CudaGraphs, TheDefaultStreamKeepsItsRules) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  begin();
  enqueue(nullptr, [] {});  // the captured stream does not wait for it
  EXPECT_EQ(end(), cudaSuccess);
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  enqueue(nullptr, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(CudaGraphs, ACaptureEndsWhereAndByWhomItBegan) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorIllegalState);
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
  cudaError_t elsewhere = cudaSuccess;
  std::thread([&] { elsewhere = cudaStreamEndCapture(first_, &graph); }).join();
  EXPECT_EQ(elsewhere, cudaErrorStreamCaptureWrongThread);
  EXPECT_EQ(end(), cudaSuccess);
  begin();
  fork();
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

// NCCL since 2.26 frees no communicator that a graph has work of.
TEST_F(CudaGraphs, ACommunicatorIsFreedWhenTheGraphsOfItsWorkAreGone) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 16), cudaSuccess);
  ASSERT_EQ(ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, comm, first_), ncclSuccess);
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  begin();
  ASSERT_EQ(ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, comm, first_), ncclSuccess);
  const cudaGraphExec_t graph = executable();
  EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  std::atomic<bool> freed{false};
  std::thread ends([&] {
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    freed = true;
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(freed);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  ends.join();
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST_F(CudaGraphs, CallsAreCountedWhereAProgramMakesThem) {
  const CallCounts before = calls_of_this_thread();
  fork();
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  std::thread([&] { EXPECT_EQ(cudaEventQuery(event_), cudaSuccess); }).join();  // not of this thread
  EXPECT_THAT(since(before), ElementsAre(Pair("cudaEventQuery", 1), Pair("cudaEventRecord", 1),
                                         Pair("cudaStreamSynchronize", 1), Pair("cudaStreamWaitEvent", 1)));
  EXPECT_EQ(total(since(before)), 4);
}

}  // namespace
}  // namespace cp::emulated
