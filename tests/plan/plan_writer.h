// PlanWriter: a plan written by hand, with its edges; the arena and the first and last uses are filled in
// plainly (no two temporaries share bytes). For tests of what must not depend on the builder.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/operations.h"
#include "shared/plan/plan.h"

namespace cp::testing {

class PlanWriter {
 public:
  explicit PlanWriter(Rank self, std::vector<std::string> streams = {"main"}) {
    plan_.self = self;
    plan_.target = host_target();
    plan_.streams = std::move(streams);
  }

  GroupId group(std::string name, std::vector<Rank> ranks) {
    plan_.groups.push_back({std::move(name), std::move(ranks)});
    return static_cast<GroupId>(plan_.groups.size() - 1);
  }
  BufferId input(std::string name, std::int64_t numel, DType dtype = DType::f32) {
    return buffer(std::move(name), BufferKind::input, numel, dtype);
  }
  BufferId output(std::string name, std::int64_t numel, DType dtype = DType::f32) {
    return buffer(std::move(name), BufferKind::output, numel, dtype);
  }
  BufferId inout(std::string name, std::int64_t numel, DType dtype = DType::f32) {
    return buffer(std::move(name), BufferKind::inout, numel, dtype);
  }
  BufferId temporary(std::string name, std::int64_t numel, DType dtype = DType::f32) {
    return buffer(std::move(name), BufferKind::temporary, numel, dtype);
  }

  StepId add(StreamId stream, Work work, std::vector<Edge> after = {}, std::string label = {}) {
    Step step{
        .stream = stream, .work = std::move(work), .after = std::move(after), .label = std::move(label)};
    if (in_repeat_) {
      std::get<Repeat>(plan_.segments.back()).steps.push_back(std::move(step));
    } else {
      plan_.segments.emplace_back(std::move(step));
    }
    return next_step_++;
  }
  void begin_repeat(std::int64_t count) {
    plan_.segments.emplace_back(Repeat{.count = count, .steps = {}});
    in_repeat_ = true;
  }
  void end_repeat() { in_repeat_ = false; }

  Plan finish() && {
    for (const StepRef& ref : steps_of(plan_)) {
      for_each_access(ref.step->work, 0, [&](const Access& access) {
        if (access.view->buffer < 0) return;
        Buffer& used = plan_.buffers[static_cast<std::size_t>(access.view->buffer)];
        if (used.first_use < 0) used.first_use = ref.id;
        used.last_use = ref.id;
      });
    }
    for (Buffer& each : plan_.buffers) {
      if (each.kind != BufferKind::temporary) {
        each.first_use = each.last_use = -1;
        continue;
      }
      each.offset_bytes = align_up(plan_.arena_bytes, size_bytes(each.dtype));
      plan_.arena_bytes = each.offset_bytes + each.bytes();
    }
    return std::move(plan_);
  }

 private:
  BufferId buffer(std::string name, BufferKind kind, std::int64_t numel, DType dtype) {
    plan_.buffers.push_back({.name = std::move(name), .kind = kind, .dtype = dtype, .numel = numel});
    return static_cast<BufferId>(plan_.buffers.size() - 1);
  }

  Plan plan_;
  bool in_repeat_ = false;
  StepId next_step_ = 0;
};

// The step with this number, to be changed.
inline Step& step_at(Plan& plan, StepId step) {
  return const_cast<Step&>(*steps_of(plan).at(static_cast<std::size_t>(step)).step);
}
template <class Op>
Op& collective_at(Plan& plan, StepId step) {
  return std::get<Op>(std::get<Collective>(step_at(plan, step).work));
}
template <class Op>
Op& kernel_at(Plan& plan, StepId step) {
  return std::get<Op>(std::get<Kernel>(step_at(plan, step).work));
}

// Gives every member of an exchange the digest of the matrix that their sends make.
inline void fill_counts(std::vector<Plan>& plans, StepId step) {
  std::vector<Count> counts;
  for (Plan& plan : plans) {
    const Exchange& exchange = collective_at<Exchange>(plan, step);
    for (const Transfer& send : exchange.sends) {
      counts.push_back({index_in_group(plan, exchange.group), send.peer, send.view.numel()});
    }
  }
  for (Plan& plan : plans) collective_at<Exchange>(plan, step).counts = counts_digest(counts);
}

}  // namespace cp::testing
