#include "sim/fuzz/mutate/mutation_sites.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp::sim {
namespace {

// The segment of a step, and its place in the segment's body.
struct Place {
  std::size_t segment = 0, in_body = 0;
};
Place place_of(const Plan& plan, StepId id) {
  StepId next = 0;
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const Repeat* repeat = std::get_if<Repeat>(&plan.segments[i]);
    const StepId count = repeat == nullptr ? 1 : static_cast<StepId>(repeat->steps.size());
    if (id < next + count) return {i, idx(id - next)};
    next += count;
  }
  CP_INVARIANT(false, "step ", id, " of a plan with ", next);
  return {};
}

template <class Renumber>
void renumber_edges(Plan& plan, const Renumber& renumber) {
  for (Segment& segment : plan.segments) {
    const auto in_step = [&](Step& step) {
      for (Edge& edge : step.after) edge.step = renumber(edge.step);
    };
    if (Step* step = std::get_if<Step>(&segment)) {
      in_step(*step);
    } else {
      for (Step& body_step : std::get<Repeat>(segment).steps) in_step(body_step);
    }
  }
}

}  // namespace

std::string Spot::text() const {
  if (step == nullptr) return str("rank ", plan->self);
  const std::string label = step->label.empty() ? "" : str(" \"", step->label, "\"");
  return str("rank ", plan->self, ", step ", id, " ", operation_name(step->work), label);
}

std::string text(const Plan& plan, const View& view) {
  const std::string phase = view.advance.stride == 0 ? "" : str(", phase ", view.advance.phase);
  return str(plan.buffers[idx(view.buffer)].name, "[offset ", view.offset, ", ", join(view.shape, "x"), phase,
             "]");
}

bool has_work(Step& step) {
  bool has_elements = is_collective(step);
  for_each_view(step, [&](const NamedView& view) { has_elements = has_elements || view.view->numel() > 0; });
  return has_elements;
}

const Group& group_of(const Spot& spot) {
  return spot.plan->groups[idx(group_of(std::get<Collective>(spot.step->work)))];
}
std::int32_t group_size(const Spot& spot) { return static_cast<std::int32_t>(group_of(spot).ranks.size()); }
std::int32_t own_index(const Spot& spot) {
  return index_in_group(*spot.plan, group_of(std::get<Collective>(spot.step->work)));
}

Spot GroupMeeting::first() const {
  return *std::find_if(members.begin(), members.end(), [](const Spot& spot) { return spot.step != nullptr; });
}

std::vector<GroupMeeting> meetings(std::vector<Plan>& plans) {
  std::vector<GroupMeeting> all;
  std::map<std::pair<std::string, std::vector<Rank>>, std::vector<std::size_t>> of_group;
  std::map<std::pair<const Plan*, GroupId>, std::size_t> next;
  Sites(plans, -1).for_each_step([&](const Spot& spot) {
    const Collective* collective = std::get_if<Collective>(&spot.step->work);
    if (collective == nullptr) return;
    const Group& group = group_of(spot);
    std::vector<std::size_t>& known = of_group[{group.name, group.ranks}];
    const std::size_t number = next[{spot.plan, group_of(*collective)}]++;
    if (known.size() == number) {
      known.push_back(all.size());
      all.emplace_back().members.resize(group.ranks.size());
    }
    all[known[number]].members[idx(own_index(spot))] = spot;
  });
  return all;
}

void count_again(const GroupMeeting& meeting) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> sums;
  const auto each = [&](const auto& visit) {
    for (std::size_t i = 0; i < meeting.members.size(); ++i) {
      const Spot& spot = meeting.members[i];
      Exchange* exchange = spot.step == nullptr ? nullptr : operation_of<Exchange>(*spot.step);
      if (exchange != nullptr) visit(static_cast<std::int32_t>(i), *exchange);
    }
  };
  each([&](std::int32_t from, const Exchange& exchange) {
    for (const Transfer& send : exchange.sends) sums[{from, send.peer}] += send.view.numel();
  });
  std::vector<Count> counts;
  for (const auto& [pair, numel] : sums) counts.push_back({pair.first, pair.second, numel});
  const Digest digest = counts_digest(counts);
  each([&](std::int32_t, Exchange& exchange) { exchange.counts = digest; });
}

void refit_uses(Plan& plan) {
  for (Buffer& buffer : plan.buffers) {
    if (buffer.kind == BufferKind::temporary) buffer.first_use = buffer.last_use = -1;
  }
  const std::vector<StepRef> steps = steps_of(plan);
  for (std::size_t begin = 0, end; begin < steps.size(); begin = end) {
    end = begin + 1;
    while (end < steps.size() && steps[end].segment == steps[begin].segment) ++end;
    for (std::size_t i = begin; i < end; ++i) {
      for_each_access(plan, steps[i].step->work, [&](const Access& access) {
        Buffer& buffer = plan.buffers[idx(access.view->buffer)];
        if (buffer.kind != BufferKind::temporary) return;
        if (buffer.first_use < 0) buffer.first_use = static_cast<StepId>(begin);
        buffer.last_use = static_cast<StepId>(end) - 1;
      });
    }
  }
}

Step& step_at(Plan& plan, StepId id) {
  const Place place = place_of(plan, id);
  Segment& segment = plan.segments[place.segment];
  if (Step* step = std::get_if<Step>(&segment)) return *step;
  return std::get<Repeat>(segment).steps[place.in_body];
}

void remove_step(Plan& plan, StepId id) {
  const Place place = place_of(plan, id);
  const auto segment = plan.segments.begin() + static_cast<std::ptrdiff_t>(place.segment);
  Repeat* repeat = std::get_if<Repeat>(&*segment);
  if (repeat != nullptr && repeat->steps.size() > 1) {
    repeat->steps.erase(repeat->steps.begin() + static_cast<std::ptrdiff_t>(place.in_body));
  } else {
    plan.segments.erase(segment);
  }
  for (Segment& each : plan.segments) {
    const auto forget = [id](Step& step) {
      std::erase_if(step.after, [id](const Edge& edge) { return edge.step == id; });
    };
    if (Step* step = std::get_if<Step>(&each)) {
      forget(*step);
    } else {
      for (Step& body_step : std::get<Repeat>(each).steps) forget(body_step);
    }
  }
  renumber_edges(plan, [id](StepId step) { return step - (step > id ? 1 : 0); });
  refit_uses(plan);
}

void double_step(Plan& plan, StepId id) {
  Step again = step_at(plan, id);
  again.after.clear();
  // Whoever waited for the step waits for its second time.
  renumber_edges(plan, [id](StepId step) { return step + (step >= id ? 1 : 0); });
  const Place place = place_of(plan, id);
  const auto segment = plan.segments.begin() + static_cast<std::ptrdiff_t>(place.segment);
  if (Repeat* repeat = std::get_if<Repeat>(&*segment)) {
    repeat->steps.insert(repeat->steps.begin() + static_cast<std::ptrdiff_t>(place.in_body) + 1,
                         std::move(again));
  } else {
    plan.segments.insert(segment + 1, std::move(again));
  }
  refit_uses(plan);
}

void swap_steps(Plan& plan, StepId a, StepId b) {
  std::swap(step_at(plan, a), step_at(plan, b));
  renumber_edges(plan, [a, b](StepId step) { return step == a ? b : step == b ? a : step; });
  refit_uses(plan);
}

}  // namespace cp::sim
