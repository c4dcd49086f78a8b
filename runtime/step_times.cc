#include "runtime/step_times.h"

#include <string>
#include <utility>
#include <variant>

#include "shared/base/text.h"
#include "shared/plan/lanes.h"

namespace cp::runtime {

namespace {

std::string label_of(const std::string& label, bool of_graph) {
  if (!of_graph) return label;
  return label.empty() ? std::string(kOfWholeGraph) : str(label, " ", kOfWholeGraph);
}

}  // namespace

void StepTimes::Stream::add(const Step& step, std::int64_t begin_ns, std::int64_t end_ns) {
  add({&step, begin_ns, end_ns, false});
}

void StepTimes::Stream::add_of_graph(const Step& step, std::int64_t begin_ns, std::int64_t end_ns) {
  add({&step, begin_ns, end_ns, true});
}

void StepTimes::Stream::add(const Time& time) {
  times_.push_back(time);
  if (times_.size() > kKeptTimes) times_.pop_front();
}

void StepTimes::require(std::size_t count, LaneId lane) {
  while (streams_.size() < count) streams_.emplace_back(std::make_unique<Stream>())->lane_ = lane;
}

void StepTimes::forget() {
  for (const auto& stream : streams_) stream->times_.clear();
  settled_ = {};
}

void StepTimes::settle() {
  for (const auto& stream : streams_) {
    for (const Stream::Time& time : std::exchange(stream->times_, {})) {
      const TimedOp op{stream_in_traces(stream->lane_, time.step->stream),
                       std::string(operation_name(time.step->work)),
                       label_of(time.step->label, time.of_graph), time.begin_ns, time.end_ns};
      settled_.steps.push_back(op);
      if (std::holds_alternative<Collective>(time.step->work)) settled_.collectives.push_back(op);
    }
  }
}

DeviceTimes StepTimes::take() {
  settle();
  return std::exchange(settled_, {});
}

}  // namespace cp::runtime
