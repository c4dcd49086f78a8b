#include "shared/plan/enqueuer.h"

#include <algorithm>

#include "shared/plan/lanes.h"
#include "shared/plan/plan_walk.h"

namespace cp {

Enqueuer::Enqueuer(const Plan& plan, Device& device, LaneId lane)
    : plan_(plan), device_(device), lane_(lane), steps_(steps_of(plan)), marks_(steps_.size()) {
  collect_marks();
}

void Enqueuer::run(RankTrace* trace) {
  if (trace != nullptr) continue_sequences(*trace);
  for (PlanWalk walk(plan_); !walk.done(); walk.next())
    issue(steps_[static_cast<std::size_t>(walk.id())], walk.iteration(), trace);
}

void Enqueuer::collect_marks() {
  for (const StepRef& ref : steps_) {
    for (const Edge& edge : ref.step->after) {
      Marks& marks = marks_.at(static_cast<std::size_t>(edge.step));
      const StepRef& target = steps_[static_cast<std::size_t>(edge.step)];
      marks.count = target.count;
      if (target.segment == ref.segment) {
        marks.nearest_back = std::min<std::int64_t>(marks.nearest_back, edge.iterations_back);
        marks.farthest_back = std::max<std::int64_t>(marks.farthest_back, edge.iterations_back);
      } else {
        marks.waited_from_outside = true;
      }
      marks.events.resize(static_cast<std::size_t>(std::min(marks.farthest_back + 1, marks.count)), -1);
    }
  }
}

void Enqueuer::continue_sequences(RankTrace& trace) {
  trace.rank = plan_.self;
  sequences_.assign(plan_.groups.size(), 0);
  for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
    sequences_[group] = std::count_if(trace.issued.begin(), trace.issued.end(), [&](const OpRecord& record) {
      return record.sequence >= 0 && record.group == plan_.groups[group];
    });
  }
}

void Enqueuer::issue(const StepRef& ref, std::int64_t iteration, RankTrace* trace) {
  wait_for_edges(ref, iteration);
  if (trace != nullptr) record_issue(*ref.step, *trace);
  device_.launch(ref, iteration);
  Marks& marks = marks_[static_cast<std::size_t>(ref.id)];
  if (marks.needed(iteration)) marks.event(iteration) = device_.record(ref.step->stream);
}

void Enqueuer::wait_for_edges(const StepRef& ref, std::int64_t iteration) {
  for (const Edge& edge : ref.step->after) {
    Marks& marks = marks_[static_cast<std::size_t>(edge.step)];
    const bool inside = steps_[static_cast<std::size_t>(edge.step)].segment == ref.segment;
    if (!inside && iteration > 0) continue;  // the stream is past that step since iteration 0
    const std::int64_t target = inside ? iteration - edge.iterations_back : marks.count - 1;
    if (target >= 0) device_.wait(ref.step->stream, marks.event(target));
  }
}

void Enqueuer::record_issue(const Step& step, RankTrace& trace) {
  std::int64_t sequence = -1;
  if (const Collective* collective = std::get_if<Collective>(&step.work)) {
    sequence = sequences_[static_cast<std::size_t>(group_of(*collective))]++;
  }
  trace.issued.push_back(issued_record(plan_, step, sequence));
  trace.issued.back().stream = stream_in_traces(lane_, step.stream);
}

}  // namespace cp
