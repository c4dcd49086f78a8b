#ifdef CP_HAVE_GLOO
#include "runtime/gloo/host_streams.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cp::runtime {
namespace {

using Streams = HostStreams<std::function<void()>>;

TEST(HostStreams, RunAStreamInOrderAndDoNotBlockTheHost) {
  Streams streams([] {});
  streams.require(1);
  std::promise<void> gate;
  std::vector<int> order;
  streams.enqueue(0, [&] { gate.get_future().wait(); });
  for (int i = 0; i < 100; ++i) streams.enqueue(0, [&order, i] { order.push_back(i); });
  EXPECT_TRUE(order.empty());  // the host is here although the stream is stuck
  gate.set_value();
  streams.synchronize();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(HostStreams, RunBesideOneAnother) {
  Streams streams([] {});
  streams.require(2);
  std::promise<void> met;
  streams.enqueue(0, [&] { met.get_future().wait(); });  // ends only if the other stream runs meanwhile
  streams.enqueue(1, [&] { met.set_value(); });
  streams.synchronize();
}

TEST(HostStreams, WaitForWhatWasEnqueuedBeforeTheRecord) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    Streams streams([] {});
    streams.require(2);
    int value = 0;  // no atomic: the event alone orders the streams
    streams.enqueue(0, [&] { value = 1; });
    const EventId written = streams.record(0);
    streams.wait(1, written);
    streams.enqueue(1, [&] { value *= 10; });
    const EventId multiplied = streams.record(1);
    streams.wait(0, multiplied);
    streams.enqueue(0, [&] { value += 5; });
    streams.synchronize();
    ASSERT_EQ(value, 15);
  }
}

TEST(HostStreams, AnEventThatIsDoneHoldsNothingUp) {
  Streams streams([] {});
  streams.require(2);
  const EventId event = streams.record(0);
  streams.synchronize();
  streams.wait(1, event);
  streams.synchronize();
}

TEST(HostStreams, TheFirstErrorEndsEverything) {
  std::promise<void> aborted;
  std::atomic<int> errors = 0;
  bool ran = false;
  Streams streams([&] {
    ++errors;
    aborted.set_value();
  });
  streams.require(3);
  streams.enqueue(1, [&] { aborted.get_future().wait(); });  // as a blocked collective that the abort ends
  streams.enqueue(1, [] { throw std::runtime_error("second"); });
  streams.enqueue(0, [] { throw std::runtime_error("first"); });
  streams.enqueue(0, [&] { ran = true; });
  streams.wait(2, streams.record(0));
  streams.enqueue(2, [&] { ran = true; });
  for (int again = 0; again < 2; ++again) {
    try {
      streams.synchronize();
      FAIL() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "first");
    }
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(errors, 1);
}

TEST(HostStreams, DropWhatHasNotBegunWhenTheyEnd) {
  std::promise<void> dropped;
  Streams streams([] {});
  streams.require(2);
  streams.enqueue(1, [&] { dropped.get_future().wait(); });  // under way until the work below is dropped
  streams.wait(0, streams.record(1));
  std::shared_ptr<void> on_drop(nullptr, [&](void*) { dropped.set_value(); });
  streams.enqueue(0, [dropper = std::move(on_drop)] { FAIL() << "ran"; });
}

}  // namespace
}  // namespace cp::runtime
#endif
