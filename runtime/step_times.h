// When the steps of a device's plan ran, by stream: what take_times() gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Of each stream the latest kKeptTimes. Times of different streams may be added on different threads; all
// else is for when none is added.
class StepTimes {
 public:
  // Of streams [0, streams) of another plan: forgets those that it has. Steps are the plan's, and stay until
  // take().
  void use(std::size_t streams);
  // Nanoseconds since the device was made; of a stream in the order in which they ran.
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
