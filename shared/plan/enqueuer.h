// Enqueuer: the loop of the executor for one plan and one device. What it works out of the plan, it works out
// once; a run allocates nothing, unless it is traced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp {

class Enqueuer {
 public:
  // Plan and device must outlive it. The lane is the one that the device keeps the plan in.
  Enqueuer(const Plan& plan, Device& device, LaneId lane = 0);

  // Enqueues all steps of the plan that the device has in use, with their edges as events. If `trace` is
  // given, every step that is launched is recorded in its `issued` section. A trace may hold earlier runs:
  // sequence numbers go on where those stopped.
  void run(RankTrace* trace);

 private:
  // Which of a step's iterations later steps wait for, and the events of the latest ones.
  struct Marks {
    static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

    std::int64_t count = 1;              // iterations of the step
    std::int64_t nearest_back = kNever;  // least and greatest iterations_back of the edges inside the Repeat
    std::int64_t farthest_back = 0;
    bool waited_from_outside = false;  // for the last iteration
    std::vector<EventId> events;       // a ring over iterations

    bool needed(std::int64_t iteration) const {
      const bool last = iteration == count - 1;
      return (waited_from_outside && last) || (nearest_back != kNever && nearest_back < count - iteration);
    }
    EventId& event(std::int64_t iteration) {
      return events[static_cast<std::size_t>(iteration) % events.size()];
    }
  };

  void collect_marks();
  void continue_sequences(RankTrace& trace);
  void issue(const StepRef& ref, std::int64_t iteration, RankTrace* trace);
  void wait_for_edges(const StepRef& ref, std::int64_t iteration);
  void record_issue(const Step& step, RankTrace& trace);

  const Plan& plan_;
  Device& device_;
  const LaneId lane_;
  std::vector<StepRef> steps_;
  std::vector<Marks> marks_;             // by step
  std::vector<std::int64_t> sequences_;  // by group, of a run that is traced
};

}  // namespace cp
