#include "shared/plan/prepared_plan.h"

namespace cp {
namespace {

// Where a run begins and ends. Every other stream waits for it at first, and it waits for them at last.
constexpr StreamId kFirst = 0;

}  // namespace

PreparedPlan::PreparedPlan(Device& device, const Plan& plan, const Bindings& bindings, LaneId lane)
    : device_(device), plan_(plan), steps_(plan, device, lane), id_(device.keep(plan, bindings, lane)) {}

PreparedPlan::~PreparedPlan() {
  try {
    last_.wait();
  } catch (...) {
    // The device keeps its first error and throws it whenever somebody waits.
  }
  try {
    device_.release(id_);
  } catch (...) {
    // What a lost device cannot give back it keeps until it goes itself.
  }
}

// A run is a fork and a join on the plan's first stream. So all that the lane ran before has ended when a
// step of this run begins: the device makes the first stream wait for it, and every other stream waits for
// the first.
PlanRun PreparedPlan::run(const Bindings& changed, CallerStream caller, RankTrace* trace) {
  device_.use(id_, changed);
  if (plan_.streams.empty()) return {};
  device_.begin_run(caller);
  return enqueue(caller, trace);
}

PlanRun PreparedPlan::run_after(std::span<const PlanRun> before, const Bindings& changed, RankTrace* trace) {
  device_.use(id_, changed);
  if (plan_.streams.empty()) return {};
  before_.clear();
  for (const PlanRun& run : before) {
    if (run.device_ != nullptr) before_.push_back(run.end_);
  }
  device_.begin_run_after(before_);
  return enqueue(nullptr, trace);
}

PlanRun PreparedPlan::enqueue(CallerStream caller, RankTrace* trace) {
  const auto streams = static_cast<StreamId>(plan_.streams.size());
  const EventId begin = device_.record(kFirst);
  for (StreamId stream = 1; stream < streams; ++stream) device_.wait(stream, begin);
  steps_.run(trace);
  for (StreamId stream = 1; stream < streams; ++stream) device_.wait(kFirst, device_.record(stream));
  const EventId end = device_.record(kFirst);
  device_.end_run(caller, end);
  last_ = PlanRun(device_, end);
  return last_;
}

void PreparedPlan::upload(BufferId buffer, std::span<const std::byte> host) {
  last_.wait();
  device_.use(id_, {});
  device_.upload(buffer, host);
}

void PreparedPlan::download(BufferId buffer, std::span<std::byte> host) {
  last_.wait();
  device_.use(id_, {});
  device_.download(buffer, host);
}

}  // namespace cp
