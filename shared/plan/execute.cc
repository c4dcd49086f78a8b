#include "shared/plan/execute.h"

#include <algorithm>
#include <limits>

#include "shared/plan/plan_walk.h"

namespace cp {
namespace {

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

class Enqueuer {
 public:
  Enqueuer(const Plan& plan, Device& device, RankTrace* trace)
      : plan_(plan), device_(device), trace_(trace), steps_(steps_of(plan)), marks_(steps_.size()) {
    collect_marks();
    if (trace_ != nullptr) continue_sequences();
  }

  void run() {
    for (PlanWalk walk(plan_); !walk.done(); walk.next())
      issue(steps_[static_cast<std::size_t>(walk.id())], walk.iteration());
  }

 private:
  void collect_marks() {
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

  // A trace may hold earlier runs: sequence numbers go on where it stopped.
  void continue_sequences() {
    trace_->rank = plan_.self;
    sequences_.resize(plan_.groups.size());
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      sequences_[group] =
          std::count_if(trace_->issued.begin(), trace_->issued.end(), [&](const OpRecord& record) {
            return record.sequence >= 0 && record.group == plan_.groups[group];
          });
    }
  }

  void issue(const StepRef& ref, std::int64_t iteration) {
    wait_for_edges(ref, iteration);
    if (trace_ != nullptr) record_issue(*ref.step);
    device_.launch(ref, iteration);
    Marks& marks = marks_[static_cast<std::size_t>(ref.id)];
    if (marks.needed(iteration)) marks.event(iteration) = device_.record(ref.step->stream);
  }

  void wait_for_edges(const StepRef& ref, std::int64_t iteration) {
    for (const Edge& edge : ref.step->after) {
      Marks& marks = marks_[static_cast<std::size_t>(edge.step)];
      const bool inside = steps_[static_cast<std::size_t>(edge.step)].segment == ref.segment;
      if (!inside && iteration > 0) continue;  // the stream is past that step since iteration 0
      const std::int64_t target = inside ? iteration - edge.iterations_back : marks.count - 1;
      if (target >= 0) device_.wait(ref.step->stream, marks.event(target));
    }
  }

  void record_issue(const Step& step) {
    std::int64_t sequence = -1;
    if (const Collective* collective = std::get_if<Collective>(&step.work)) {
      sequence = sequences_[static_cast<std::size_t>(group_of(*collective))]++;
    }
    trace_->issued.push_back(issued_record(plan_, step, sequence));
  }

  const Plan& plan_;
  Device& device_;
  RankTrace* trace_;
  std::vector<StepRef> steps_;
  std::vector<Marks> marks_;             // by step
  std::vector<std::int64_t> sequences_;  // by group
};

}  // namespace

void enqueue(const Plan& plan, Device& device, const Bindings& bindings, RankTrace* trace) {
  device.prepare(plan, bindings);
  enqueue_steps(plan, device, trace);
}

void execute(const Plan& plan, Device& device, const Bindings& bindings, RankTrace* trace) {
  enqueue(plan, device, bindings, trace);
  device.synchronize();
}

void enqueue_steps(const Plan& plan, Device& device, RankTrace* trace) {
  Enqueuer(plan, device, trace).run();
}

}  // namespace cp
