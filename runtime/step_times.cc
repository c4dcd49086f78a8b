#include "runtime/step_times.h"

#include <string>
#include <utility>
#include <variant>

namespace cp::runtime {

void StepTimes::use(std::size_t streams) {
  streams_.clear();
  streams_.resize(streams);
}

void StepTimes::add(const Step& step, std::int64_t begin_ns, std::int64_t end_ns) {
  std::deque<Time>& times = streams_[static_cast<std::size_t>(step.stream)];
  times.push_back({&step, begin_ns, end_ns});
  if (times.size() > kKeptTimes) times.pop_front();
}

DeviceTimes StepTimes::take() {
  DeviceTimes times;
  for (std::deque<Time>& stream : streams_) {
    for (const Time& time : std::exchange(stream, {})) {
      const TimedOp op{time.step->stream, std::string(operation_name(time.step->work)), time.step->label,
                       time.begin_ns, time.end_ns};
      times.steps.push_back(op);
      if (std::holds_alternative<Collective>(time.step->work)) times.collectives.push_back(op);
    }
  }
  return times;
}

}  // namespace cp::runtime
