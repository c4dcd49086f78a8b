// StepTimes: collects when the steps of a device's plan ran, for ProcessDevice::take_times().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Keeps the latest kKeptTimes times of each stream. Different threads may add times of different streams.
// While any thread adds, no other function may be called.
class StepTimes {
 public:
  // Begins with another plan, which has that many streams, and forgets all times. The plan's steps must live
  // until take().
  void use(std::size_t streams);
  // Adds a time, in ns since the device was made. Steps of one stream are added in the order in which they
  // ran.
  void add(const Step& step, std::int64_t begin_ns, std::int64_t end_ns);
  DeviceTimes take();

 private:
  struct Time {
    const Step* step = nullptr;
    std::int64_t begin_ns = 0, end_ns = 0;
  };
  std::vector<std::deque<Time>> streams_;
};

}  // namespace cp::runtime
