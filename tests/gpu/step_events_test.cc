// Events of steps: what they share, what they time, and what waits for them.
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "tests/gpu/kernel_run.h"
#ifdef CP_GPU_EMULATED
#include "tests/emulated_gpu/emulated_stream.h"
#endif

namespace cp {
namespace {

using runtime::CudaStream;
using runtime::StepEvents;
using namespace std::chrono_literals;

// Work that ends when told. One at a time: CUDA may run all host functions on one thread.
class Gate {
 public:
  explicit Gate(const CudaStream& stream) {
    CP_CUDA(cudaLaunchHostFunc(
        stream.get(),
        [](void* gate) {
          while (!static_cast<Gate*>(gate)->open_) std::this_thread::sleep_for(1ms);
        },
        this));
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

class GpuStepEvents : public ::testing::Test {
 protected:
  void SetUp() override {
    CP_SKIP_WITHOUT_GPU();
    first_.emplace(CudaStream::Priority::normal), second_.emplace(CudaStream::Priority::normal);
    events_.emplace();
    made_ = std::chrono::steady_clock::now();
    events_->add_stream(first_->get());
    events_->add_stream(second_->get());
    events_->reserve(16);
    events_->restart();
  }
  void finish() {
    CP_CUDA(cudaStreamSynchronize(first_->get()));
    CP_CUDA(cudaStreamSynchronize(second_->get()));
  }
  StepEvents::Pair step(StreamId stream) {
    const StepEvents::Pair pair = events_->begin(stream);
    events_->end();
    return pair;
  }

  std::optional<CudaStream> first_, second_;
  std::optional<StepEvents> events_;
  std::chrono::steady_clock::time_point made_;  // soon after
};

TEST_F(GpuStepEvents, AStepBehindAnUnfinishedOneBeginsAtItsEnd) {
  Gate gate(*first_);
  const auto one = step(0), two = step(0), other = step(1);
  EXPECT_EQ(two.begin, one.end);
  EXPECT_NE(other.begin, one.end);
  gate.open();
  finish();
  const auto late = step(0);  // the host comes to it when the stream has nothing to do
  EXPECT_NE(late.begin, two.end);
  finish();
  const auto intervals = events_->take();
  ASSERT_EQ(intervals.size(), 4U);
  EXPECT_EQ(intervals[1].begin_ns, intervals[0].end_ns);
  EXPECT_GE(intervals[3].begin_ns, intervals[1].end_ns);
}

TEST_F(GpuStepEvents, AStepThatWaitsBeginsBehindTheWait) {
  Gate gate(*second_);
  events_->wait(0, events_->record(1));
  const auto before = step(0), waited_for = step(1);
  events_->wait(0, events_->record(1));
  const auto after = step(0);
  EXPECT_NE(after.begin, before.end) << "the wait is no part of the step";
  gate.open();
  finish();
  const auto intervals = events_->take();
  ASSERT_EQ(intervals.size(), 3U);
  // Clocks of two streams, read against one anchor.
  EXPECT_GE(intervals[2].begin_ns, intervals[1].end_ns - 1'000);
  EXPECT_NE(waited_for.end, after.begin);
}

TEST_F(GpuStepEvents, WaitingForAStepsEndWaitsForNothingBehindIt) {
  Gate first(*first_);
  const auto one = step(0);
  const EventId marked = events_->record(0);
  Gate second(*first_);
  events_->enqueued(0);
  events_->wait(1, marked);
  const auto waiting = step(1);
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(cudaEventQuery(waiting.end), cudaErrorNotReady);
  static_cast<void>(cudaGetLastError());
  first.open();
  CP_CUDA(cudaStreamSynchronize(second_->get()));  // though the second gate is closed
  EXPECT_EQ(cudaEventQuery(one.end), cudaSuccess);
  second.open();
  finish();
}

TEST_F(GpuStepEvents, ARecordBehindOtherWorkIsNotTheStepsEnd) {
  step(0);
  Gate gate(*first_);
  events_->enqueued(0);
  events_->wait(1, events_->record(0));
  const auto waiting = step(1);
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(cudaEventQuery(waiting.end), cudaErrorNotReady);
  static_cast<void>(cudaGetLastError());
  gate.open();
  finish();
}

TEST_F(GpuStepEvents, AStepThatDidNotEndHasNoInterval) {
  step(0);
  finish();
  static_cast<void>(events_->take());
  events_->begin(0);  // its end's event, which another step's end was before, is not recorded
  step(1);
  finish();
  const auto intervals = events_->take();
  ASSERT_EQ(intervals.size(), 2U);
  EXPECT_EQ(intervals[0].begin_ns, -1);
  EXPECT_GE(intervals[1].begin_ns, 0);
}

TEST_F(GpuStepEvents, EventsAreUsedAgainOnceTheirTimesAreTaken) {
  EXPECT_EQ(events_->left(), 16U);
  const auto first = step(0);
  const EventId marked = events_->record(0);
  finish();
  EXPECT_EQ(events_->take().size(), 1U);
  EXPECT_EQ(events_->left(), 16U);
  Gate gate(*first_);
  const auto again = step(0);
  EXPECT_EQ(again.begin, first.begin);
  events_->wait(1, marked);  // has happened: its event, which is another step's now, is not waited for
  step(1);
  CP_CUDA(cudaStreamSynchronize(second_->get()));
  gate.open();
  finish();
  for (int i = 0; i < 40; ++i) step(0);  // more than there were events for
  finish();
  EXPECT_EQ(events_->take().size(), 42U);
  EXPECT_GE(events_->left(), 40U / 2);
}

#ifdef CP_GPU_EMULATED

// The host comes back late from the first try to set the time: the others are as good as if it had not.
TEST_F(GpuStepEvents, TimesDoNotMoveWhereTheHostIsLate) {
  constexpr auto kLate = 2000ms;
  const auto start = std::chrono::steady_clock::now();  // later than that of the events
  emulated::be_late(kLate);
  events_->restart();
  step(0);
  finish();
  const std::chrono::nanoseconds ended = std::chrono::steady_clock::now() - start;
  const std::int64_t begin_ns = events_->take().at(0).begin_ns;
  const std::chrono::nanoseconds before = start - made_;
  EXPECT_GE(begin_ns, before.count());
  EXPECT_LT(std::chrono::nanoseconds(begin_ns), before + ended + kLate / 4);
}

#endif

}  // namespace
}  // namespace cp
