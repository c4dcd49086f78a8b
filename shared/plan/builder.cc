#include "shared/plan/builder.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "shared/plan/order.h"
#include "shared/plan/step_rules.h"
#include "shared/plan/temporaries.h"

namespace cp {

PlanBuilder::PlanBuilder(Rank self, Target target) {
  plan_.self = self;
  plan_.target = std::move(target);
  const std::int64_t alignment = plan_.target.alignment_bytes;
  if (alignment < 1 || (alignment & (alignment - 1)) != 0) {
    throw InvalidInput(
        str("target ", plan_.target.name, " aligns to ", alignment, " bytes; use a power of two"));
  }
}

StreamId PlanBuilder::stream(std::string name) {
  const auto found = std::find(plan_.streams.begin(), plan_.streams.end(), name);
  if (found != plan_.streams.end()) return static_cast<StreamId>(found - plan_.streams.begin());
  plan_.streams.push_back(std::move(name));
  return static_cast<StreamId>(plan_.streams.size() - 1);
}

GroupId PlanBuilder::group(std::string name, std::vector<Rank> ranks, bool copy_engine) {
  for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
    const Group& known = plan_.groups[i];
    if (known.name != name || known.ranks != ranks) continue;
    if (known.copy_engine != copy_engine) {
      throw InvalidInput(str("group ", name, "[", join(ranks), "] is there ",
                             copy_engine ? "without" : "with",
                             " copy engines; give the other one another name"));
    }
    return static_cast<GroupId>(i);
  }
  std::vector<Rank> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw InvalidInput(str("group ", name, "[", join(ranks), "] holds rank ", *twice, " twice"));
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), plan_.self)) {
    throw InvalidInput(str("group ", name, "[", join(ranks), "] lacks rank ", plan_.self,
                           "; a rank's plan has only groups that the rank is a member of"));
  }
  plan_.groups.push_back({std::move(name), std::move(ranks), copy_engine});
  group_streams_.push_back(-1);
  return static_cast<GroupId>(plan_.groups.size() - 1);
}

BufferId PlanBuilder::input(std::string name, DType dtype, std::int64_t numel) {
  return add_buffer(std::move(name), BufferKind::input, dtype, numel, Anchor::any);
}
BufferId PlanBuilder::output(std::string name, DType dtype, std::int64_t numel) {
  return add_buffer(std::move(name), BufferKind::output, dtype, numel, Anchor::any);
}
BufferId PlanBuilder::inout(std::string name, DType dtype, std::int64_t numel) {
  return add_buffer(std::move(name), BufferKind::inout, dtype, numel, Anchor::any);
}
BufferId PlanBuilder::temporary(std::string name, DType dtype, std::int64_t numel, Anchor anchor) {
  return add_buffer(std::move(name), BufferKind::temporary, dtype, numel, anchor);
}

BufferId PlanBuilder::symmetric(std::string name, DType dtype, std::int64_t numel) {
  const BufferId made = add_buffer(std::move(name), BufferKind::temporary, dtype, numel, Anchor::any);
  plan_.buffers.back().symmetric = true;
  return made;
}

void PlanBuilder::grow(BufferId temporary, std::int64_t numel) {
  Buffer& buffer = plan_.buffers.at(static_cast<std::size_t>(temporary));
  CP_INVARIANT(buffer.kind == BufferKind::temporary, "grow of ", buffer.name, ", which is the caller's");
  CP_INVARIANT(!buffer.symmetric, "grow of ", buffer.name, ", whose size is that on all ranks");
  buffer.numel = std::max(buffer.numel, numel);
}

BufferId PlanBuilder::add_buffer(std::string name, BufferKind kind, DType dtype, std::int64_t numel,
                                 Anchor anchor) {
  // Elements have at most 8 bytes, so a buffer has at most 2^62 bytes, and the sum of two buffers still fits
  // into 64 bits.
  constexpr std::int64_t kMaxNumel = std::int64_t{1} << 59;
  if (numel < 0 || numel > kMaxNumel) {
    throw InvalidInput(str("buffer ", name, " has ", numel, " elements; use 0 to 2^59"));
  }
  if (!plan_.target.dtypes.contains(dtype)) {
    throw InvalidInput(
        str("target ", plan_.target.name, " has no dtype ", cp::name(dtype), " (buffer ", name, ")"));
  }
  plan_.buffers.push_back({.name = std::move(name), .kind = kind, .dtype = dtype, .numel = numel});
  anchors_.push_back(anchor);
  return static_cast<BufferId>(plan_.buffers.size() - 1);
}

StepId PlanBuilder::add(StreamId stream, Kernel kernel, std::string label) {
  return add_work(stream, std::move(kernel), std::move(label));
}
StepId PlanBuilder::add(StreamId stream, Collective collective, std::string label) {
  const auto group = static_cast<std::size_t>(group_of(collective));
  const StreamId before = group < group_streams_.size() ? group_streams_[group] : -1;
  if (before >= 0 && before != stream) {
    throw InvalidInput(str("group ", plan_.groups[group].name, " has a collective on stream ", stream,
                           " after one on stream ", before,
                           "; issue all collectives of a group on one stream, or make a second group"));
  }
  const StepId id = add_work(stream, std::move(collective), std::move(label));
  group_streams_[group] = stream;
  return id;
}

StepId PlanBuilder::add_work(StreamId stream, Work work, std::string label) {
  Step step{.stream = stream, .work = std::move(work), .after = {}, .label = std::move(label)};
  Repeat* repeat = in_repeat_ ? &std::get<Repeat>(plan_.segments.back()) : nullptr;
  validate_step(plan_, step, repeat != nullptr ? repeat->count : 1);
  if (repeat != nullptr) {
    repeat->steps.push_back(std::move(step));
  } else {
    plan_.segments.emplace_back(std::move(step));
  }
  return next_step_++;
}

void PlanBuilder::begin_repeat(std::int64_t count) {
  if (in_repeat_)
    throw InvalidInput("begin_repeat was called inside a Repeat; Repeats do not nest: unroll one of them");
  if (count < 1)
    throw InvalidInput(str("a Repeat has ", count, " iterations; use at least 1, or leave the Repeat out"));
  plan_.segments.emplace_back(Repeat{.count = count, .steps = {}});
  in_repeat_ = true;
}

void PlanBuilder::end_repeat() {
  if (!in_repeat_) throw InvalidInput("end_repeat was called without begin_repeat; call begin_repeat first");
  in_repeat_ = false;
  if (std::get<Repeat>(plan_.segments.back()).steps.empty()) plan_.segments.pop_back();
}

UnplacedPlan PlanBuilder::build_unplaced(const Digest& inputs) && {
  if (in_repeat_) throw InvalidInput("build was called inside a Repeat; call end_repeat first");
  plan_.inputs = inputs;
  Order order = derive_edges(plan_);
  return {std::move(plan_), std::move(anchors_), std::move(order)};
}

Plan PlanBuilder::build(const Digest& inputs) && { return placed(std::move(*this).build_unplaced(inputs)); }

}  // namespace cp
