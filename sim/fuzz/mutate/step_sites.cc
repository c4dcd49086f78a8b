// Steps left out, doubled, moved; edges and streams.
#include "shared/base/index.h"
#include "sim/fuzz/mutate/mutation_sites.h"

namespace cp::sim {
namespace {

// The steps that the step at `spot` may trade places with: those of the same stream and segment that follow
// it; or, outside of Repeats, those of the stream that follow before the next Repeat. At most this many, the
// nearest ones. Chosen: a step that is moved far is caught by the rules that catch one moved a little.
constexpr std::size_t kFarthestPartner = 4;
std::vector<StepId> partners(const Spot& spot) {
  const std::vector<StepRef> steps = steps_of(*spot.plan);
  const auto in_repeat = [&](const StepRef& ref) {
    return std::holds_alternative<Repeat>(spot.plan->segments[idx(ref.segment)]);
  };
  const StepRef& self = steps[idx(spot.id)];
  std::vector<StepId> found;
  for (std::size_t i = idx(spot.id) + 1; i < steps.size() && found.size() < kFarthestPartner; ++i) {
    if (in_repeat(self) ? steps[i].segment != self.segment : in_repeat(steps[i])) break;
    if (steps[i].step->stream == self.step->stream && steps[i].step->work != self.step->work &&
        has_work(step_at(*spot.plan, steps[i].id)))
      found.push_back(steps[i].id);
  }
  return found;
}

void edges(Sites& sites, const Spot& spot) {
  for (std::size_t i = 0; i < spot.step->after.size(); ++i) {
    sites.offer(spot, false, [spot, i](Numbers&) {
      const StepId dropped = spot.step->after[i].step;
      spot.step->after.erase(spot.step->after.begin() + static_cast<std::ptrdiff_t>(i));
      return str("edge to step ", dropped, ": dropped");
    });
  }
}

void streams(Sites& sites, const Spot& spot) {
  const auto count = static_cast<StreamId>(spot.plan->streams.size());
  for (StreamId stream = 0; stream <= count; ++stream) {
    if (stream == spot.step->stream) continue;
    sites.offer(spot, false, [spot, stream, count](Numbers&) {
      if (stream == count) spot.plan->streams.emplace_back("one more");
      const StreamId before = std::exchange(spot.step->stream, stream);
      return str("stream: ", before, " -> ", stream);
    });
  }
}

void repeats(Sites& sites) {
  sites.for_each_plan([&](const Spot& spot) {
    for (Segment& segment : spot.plan->segments) {
      Repeat* repeat = std::get_if<Repeat>(&segment);
      if (repeat == nullptr) continue;
      bool has_collective = false;
      for (const Step& step : repeat->steps) has_collective = has_collective || is_collective(step);
      sites.offer(spot, !has_collective, [repeat](Numbers& draws) {
        const std::int64_t before = repeat->count;
        repeat->count += draws.of({1, -1});
        return str("count of a Repeat: ", before, " -> ", repeat->count);
      });
    }
  });
}

}  // namespace

void step_sites(Sites& sites, MutationKind kind) {
  if (kind == MutationKind::change_repeat) return repeats(sites);
  sites.for_each_step([&](const Spot& spot) {
    if (!has_work(*spot.step)) return;
    const bool local = !is_collective(*spot.step);
    switch (kind) {
      case MutationKind::drop_step:
        return sites.offer(spot, local, [spot](Numbers&) {
          remove_step(*spot.plan, spot.id);
          return std::string("dropped");
        });
      case MutationKind::repeat_step:
        return sites.offer(spot, local, [spot](Numbers&) {
          double_step(*spot.plan, spot.id);
          return std::string("done twice");
        });
      case MutationKind::reorder_steps: {
        std::vector<StepId> others = partners(spot);
        if (others.empty()) return;
        return sites.offer(spot, true, [spot, others](Numbers& draws) {
          const StepId other = draws.of(others);
          const std::string with = Spot{spot.plan, other, &step_at(*spot.plan, other)}.text();
          swap_steps(*spot.plan, spot.id, other);
          return str("trades places with ", with);
        });
      }
      case MutationKind::drop_edge:
        return edges(sites, spot);
      case MutationKind::change_stream:
        return streams(sites, spot);
      default:
        return;
    }
  });
}

}  // namespace cp::sim
