#include "shared/plan/lives.h"

#include <algorithm>

#include "shared/base/index.h"
#include "shared/plan/operations.h"

namespace cp {

Lives::Lives(const Plan& plan, const Order& order)
    : plan_(plan), order_(order), num_streams_(idx(order.num_streams())), uses_(plan.buffers.size()) {
  if (!order_.one_stream()) {
    const std::size_t all = uses_.size() * num_streams_;
    last_.assign(all, kNoPosition), last_of_first_.assign(all, kNoPosition);
    known_.assign(all, order_.num_positions()), known_of_second_.assign(all, order_.num_positions());
  }
  const std::vector<StepRef> steps = steps_of(plan);
  for (std::size_t begin = 0, end; begin < steps.size(); begin = end) {
    for (end = begin; end < steps.size() && steps[end].segment == steps[begin].segment;) ++end;
    const bool repeats = std::holds_alternative<Repeat>(plan.segments[idx(steps[begin].segment)]);
    segments_.push_back({static_cast<StepId>(begin), static_cast<StepId>(end), steps[begin].count, repeats});
    add_segment(steps, segments_.back());
  }
}

void Lives::add_segment(const std::vector<StepRef>& steps, const Segment& segment) {
  const auto is_temporary = [&](const View& view) {
    return plan_.buffers[idx(view.buffer)].kind == BufferKind::temporary;
  };
  const bool several_streams = segment.repeats && !order_.one_stream();
  const std::size_t ends = ends_of_first_.size();
  segments_.back().ends_of_first = ends;
  if (several_streams) ends_of_first_.resize(ends + num_streams_, kNoPosition);
  for (StepId id = segment.begin; id < segment.end; ++id) {
    if (several_streams) ends_of_first_[ends + idx(order_.place(id).stream)] = order_.place(id).first;
    const Work& work = steps[idx(id)].step->work;
    bool writes = false;
    for_each_access(plan_, work, [&](const Access& access) {
      if (!is_temporary(*access.view)) return;
      use(access.view->buffer, id, segment);
      if (access.reads && segment.repeats) read(*access.view);
      writes = writes || access.writes;
    });
    // A step reads before it writes, in whatever order its views are named.
    if (!writes || !segment.repeats) continue;
    for_each_access(plan_, work, [&](const Access& access) {
      if (access.writes && is_temporary(*access.view)) write(*access.view);
    });
  }
}

void Lives::read(const View& view) {
  Uses& uses = uses_[idx(view.buffer)];
  if (uses.carried || uses.segment == kSeveral) return;
  uses.carried = !moves_with_others(uses, view) || !uses.written.holds(view);
}

void Lives::write(const View& view) {
  Uses& uses = uses_[idx(view.buffer)];
  if (uses.carried || uses.segment == kSeveral) return;
  uses.carried = !moves_with_others(uses, view);
  if (!uses.carried) uses.written.add(view);
}

// If all views of a buffer move alike, what holds of them in one iteration holds in each.
bool Lives::moves_with_others(Uses& uses, const View& view) {
  const Advance advance = view.advance.stride == 0 ? Advance{} : view.advance;
  if (uses.written.empty()) uses.advance = advance;
  return uses.advance == advance;
}

void Lives::use(BufferId buffer, StepId step, const Segment& segment) {
  Uses& uses = uses_[idx(buffer)];
  const auto number = static_cast<std::int32_t>(segments_.size()) - 1;
  if (uses.segment == kNone) {
    uses.segment = number;
    uses.first = step, uses.segment_first = segment.begin;
  } else if (uses.segment != number) {
    uses.segment = kSeveral;
  }
  uses.last = step, uses.segment_last = segment.end - 1;
  if (!order_.one_stream()) follow_streams(buffer, step, segment);
}

void Lives::follow_streams(BufferId buffer, StepId step, const Segment& segment) {
  const Order::Place& place = order_.place(step);
  const std::size_t at = row(buffer) + idx(place.stream);
  // The first use on this stream. What is over before the buffer starts to live is what all streams that use
  // it have waited for: the minimum over their first uses.
  if (last_[at] == kNoPosition) {
    const Position second = place.first + (segment.count > 1 ? segment.end - segment.begin : 0);
    for (StreamId stream = 0; stream < order_.num_streams(); ++stream) {
      Position &known = known_[row(buffer) + idx(stream)],
               &known_of_second = known_of_second_[row(buffer) + idx(stream)];
      known = std::min(known, order_.clock(place.first, stream));
      known_of_second = std::min(known_of_second, order_.clock(second, stream));
    }
  }
  last_[at] = place.last, last_of_first_[at] = place.first;
}

bool Lives::lives_in_body(const Uses& uses) const {
  return uses.segment >= 0 && segments_[idx(uses.segment)].repeats && !uses.carried;
}

StepId Lives::first_use(BufferId buffer) const {
  const Uses& uses = uses_[idx(buffer)];
  return lives_in_body(uses) ? uses.first : uses.segment_first;
}
StepId Lives::last_use(BufferId buffer) const {
  const Uses& uses = uses_[idx(buffer)];
  return lives_in_body(uses) ? uses.last : uses.segment_last;
}

Position Lives::first_unsure(BufferId buffer) const {
  Position first = order_.num_positions();
  for (StreamId stream = 0; stream < order_.num_streams(); ++stream)
    first = std::min(first, order_.next_on(stream, known_[row(buffer) + idx(stream)]));
  return first;
}

// Mostly the second iteration waits for all of the first one, so that nothing has to be searched.
Position Lives::first_unsure_of_second(BufferId buffer, const Segment& segment) const {
  Position first = order_.num_positions();
  if (order_.one_stream() || segment.count == 1) return first;
  for (StreamId stream = 0; stream < order_.num_streams(); ++stream) {
    const Position known = known_of_second_[row(buffer) + idx(stream)];
    if (known < ends_of_first_[segment.ends_of_first + idx(stream)])
      first = std::min(first, order_.next_on(stream, known));
  }
  return first;
}

Block Lives::block(BufferId buffer) const {
  const Uses& uses = uses_[idx(buffer)];
  const Order::Place &first = order_.place(uses.first), &last = order_.place(uses.last);
  Block block;
  block.first = first.segment_first, block.last = last.segment_last;
  if (lives_in_body(uses)) {
    block.cycle = {uses.segment, block.first, block.last,
                   first_unsure_of_second(buffer, segments_[idx(uses.segment)])};
    block.first = first.first, block.last = last.first;
  }
  block.horizon = block.first;
  if (!order_.one_stream()) block.horizon = std::min(block.horizon, first_unsure(buffer));
  return block;
}

bool Lives::ordered(BufferId earlier, BufferId later, Turn turn) const {
  const Uses &a = uses_[idx(earlier)], &b = uses_[idx(later)];
  const bool one_body = a.segment == b.segment && lives_in_body(a) && lives_in_body(b);
  const std::vector<Position>&last = one_body ? last_of_first_ : last_,
        &known = turn == Turn::next ? known_of_second_ : known_;
  for (std::size_t stream = 0; stream < num_streams_; ++stream) {
    if (last[row(earlier) + stream] > known[row(later) + stream]) return false;
  }
  return true;
}

}  // namespace cp
