// StepTimes: collects when the steps of a device's plans ran, for ProcessDevice::take_times().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// What the label of a time ends with that is not the step's own, but that of the whole run.
inline constexpr std::string_view kOfWholeGraph = "[of the whole graph]";

// Keeps the latest kKeptTimes times of each of the device's streams.
class StepTimes {
 public:
  // Of one stream; one thread at a time may add to it.
  class Stream {
   public:
    // Adds a time, in ns since the device was made, of a step that ran behind those before it. The step must
    // live until take() or settle().
    void add(const Step& step, std::int64_t begin_ns, std::int64_t end_ns);
    // The same of a step of a CUDA graph, of which only the whole is timed: the times are the graph's, and
    // the label says so (kOfWholeGraph).
    void add_of_graph(const Step& step, std::int64_t begin_ns, std::int64_t end_ns);

   private:
    friend class StepTimes;
    struct Time {
      const Step* step = nullptr;
      std::int64_t begin_ns = 0, end_ns = 0;
      bool of_graph = false;
    };
    void add(const Time& time);
    LaneId lane_ = 0;
    std::deque<Time> times_;
  };

  // Makes sure that the streams 0 .. count-1 exist, while times may be added; those that are new are of this
  // lane. They stay where they are.
  void require(std::size_t count, LaneId lane);
  Stream& stream(StreamId stream) { return *streams_[static_cast<std::size_t>(stream)]; }

  // While any thread adds, these may not be called. forget() drops all times; settle() copies what it needs
  // of the steps, so that their plans may go; take() returns all times, by stream.
  void forget();
  void settle();
  DeviceTimes take();

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  DeviceTimes settled_;
};

}  // namespace cp::runtime
