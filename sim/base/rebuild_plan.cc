#include "sim/base/rebuild_plan.h"

#include <string>
#include <utility>
#include <variant>

namespace cp::sim {

Plan rebuild_plan(const Plan& plan, const AddStep& add) {
  PlanBuilder builder(plan.self, plan.target);
  for (const std::string& stream : plan.streams) builder.stream(stream);
  for (const Group& group : plan.groups) builder.group(group.name, group.ranks, group.copy_engine);
  for (const Buffer& buffer : plan.buffers) {
    switch (buffer.kind) {
      case BufferKind::input:
        builder.input(buffer.name, buffer.dtype, buffer.numel);
        break;
      case BufferKind::output:
        builder.output(buffer.name, buffer.dtype, buffer.numel);
        break;
      case BufferKind::inout:
        builder.inout(buffer.name, buffer.dtype, buffer.numel);
        break;
      case BufferKind::temporary:
        buffer.symmetric ? builder.symmetric(buffer.name, buffer.dtype, buffer.numel)
                         : builder.temporary(buffer.name, buffer.dtype, buffer.numel);
        break;
    }
  }
  StepId id = 0;
  for (const Segment& segment : plan.segments) {
    if (const Step* step = std::get_if<Step>(&segment)) {
      add(builder, *step, id++);
      continue;
    }
    const Repeat& repeat = std::get<Repeat>(segment);
    builder.begin_repeat(repeat.count);
    for (const Step& step : repeat.steps) add(builder, step, id++);
    builder.end_repeat();
  }
  return std::move(builder).build(plan.inputs);
}

}  // namespace cp::sim
