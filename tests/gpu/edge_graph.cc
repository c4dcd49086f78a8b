#include "tests/gpu/edge_graph.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>

#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::testing {
namespace {

Step& step_at(Plan& plan, StepId id) {
  for (Segment& segment : plan.segments) {
    if (Step* const one = std::get_if<Step>(&segment)) {
      if (id-- == 0) return *one;
      continue;
    }
    Repeat& repeat = std::get<Repeat>(segment);
    if (id < static_cast<StepId>(repeat.steps.size())) return repeat.steps[static_cast<std::size_t>(id)];
    id -= static_cast<StepId>(repeat.steps.size());
  }
  throw std::out_of_range("no such step");
}

const Plan& plan_of(const std::vector<Plan>& plans, Rank rank) {
  return *std::ranges::find(plans, rank, &Plan::self);
}

}  // namespace

std::vector<EdgePlace> edges_of(const std::vector<Plan>& plans) {
  std::vector<EdgePlace> places;
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) {
      for (std::size_t i = 0; i < ref.step->after.size(); ++i) places.push_back({plan.self, ref.id, i});
    }
  }
  return places;
}

const Edge& edge_at(const Plan& plan, const EdgePlace& place) {
  return steps_of(plan)[static_cast<std::size_t>(place.step)].step->after[place.index];
}

Plan without(Plan plan, const EdgePlace& place) {
  std::vector<Edge>& after = step_at(plan, place.step).after;
  after.erase(after.begin() + static_cast<std::ptrdiff_t>(place.index));
  return plan;
}

std::string to_text(const std::vector<Plan>& plans, const EdgePlace& place) {
  const Plan& plan = plan_of(plans, place.rank);
  const std::vector<StepRef> steps = steps_of(plan);
  const Edge& edge = edge_at(plan, place);
  const auto named = [&](StepId id) {
    const Step& step = *steps[static_cast<std::size_t>(id)].step;
    return str("step ", id, " (", operation_name(step.work), " ", step.label, ")");
  };
  return str("rank ", place.rank, ": ", named(place.step), " after ", named(edge.step), ", ",
             edge.iterations_back, " iterations back");
}

EdgeGraph::EdgeGraph(const std::vector<Plan>& plans, bool takes_turns) : plans_(plans) {
  for (const Plan& plan : plans) add_rank(plan, takes_turns);
  add_collectives(plans);
}

void EdgeGraph::add_rank(const Plan& plan, bool takes_turns) {
  const std::vector<StepRef> steps = steps_of(plan);
  std::map<Launch, Node>& begins = begins_.emplace_back();
  auto& collectives = collectives_.emplace_back();
  std::map<StreamId, Node> last_end;
  const auto end_of = [&](StepId step, std::int64_t iteration) { return begins.at({step, iteration}) + 1; };
  const auto launch = [&](const StepRef& ref, std::int64_t iteration) {
    const Node begin = before_.size();
    before_.resize(begin + 2);
    before_[begin + 1].push_back({begin});
    if (const auto last = last_end.find(ref.step->stream); last != last_end.end())
      before_[begin].push_back({last->second});
    for (const Edge& edge : ref.step->after) {
      const StepRef& other = steps[static_cast<std::size_t>(edge.step)];
      const bool is_inside = other.segment == ref.segment;
      const std::int64_t awaited = is_inside ? iteration - edge.iterations_back : other.count - 1;
      if (awaited >= 0) before_[begin].push_back({end_of(edge.step, awaited), &edge});
    }
    const auto* collective = std::get_if<Collective>(&ref.step->work);
    if (collective != nullptr &&
        plan.groups[static_cast<std::size_t>(group_of(*collective))].ranks.size() > 1) {
      if (takes_turns && !collectives.empty()) before_[begin].push_back({collectives.back().second + 1});
      collectives.emplace_back(ref.step, begin);
    }
    last_end[ref.step->stream] = begin + 1;
    begins[{ref.id, iteration}] = begin;
  };
  for (std::size_t i = 0; i < steps.size();) {
    std::size_t end = i + 1;
    while (end < steps.size() && steps[end].segment == steps[i].segment) ++end;
    for (std::int64_t iteration = 0; iteration < steps[i].count; ++iteration) {
      for (std::size_t at = i; at < end; ++at) launch(steps[at], iteration);
    }
    i = end;
  }
}

void EdgeGraph::add_collectives(const std::vector<Plan>& plans) {
  // By group and its how-manieth collective: who takes part, as which node.
  std::map<std::pair<std::string, std::size_t>, std::map<Rank, Node>> members;
  std::vector<std::tuple<const Plan*, const Collective*, std::pair<std::string, std::size_t>>> all;
  for (std::size_t at = 0; at < plans.size(); ++at) {
    std::map<std::string, std::size_t> counts;
    for (const auto& [step, begin] : collectives_[at]) {
      const Collective& collective = std::get<Collective>(step->work);
      const std::string name =
          canonical_name(plans[at].groups[static_cast<std::size_t>(group_of(collective))]);
      const std::pair<std::string, std::size_t> key{name, counts[name]++};
      members[key][plans[at].self] = begin;
      all.emplace_back(&plans[at], &collective, key);
    }
  }
  for (const auto& [plan, collective, key] : all) {
    const std::map<Rank, Node>& nodes = members.at(key);
    const Group& group = plan->groups[static_cast<std::size_t>(group_of(*collective))];
    const Volume moved = volume(*collective, *plan);
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      if (group.ranks[i] != plan->self && (moved.sent[i] > 0 || moved.received[i] > 0))
        before_[nodes.at(plan->self) + 1].push_back({nodes.at(group.ranks[i]), nullptr, true});
    }
  }
}

bool EdgeGraph::is_implied(const EdgePlace& place, bool by_peers) const {
  const auto at =
      static_cast<std::size_t>(std::ranges::find(plans_, place.rank, &Plan::self) - plans_.begin());
  const Edge& edge = edge_at(plans_[at], place);
  for (const auto& [launch, begin] : begins_[at]) {
    if (launch.first != place.step) continue;
    for (const Before& before : before_[begin]) {
      if (before.edge == &edge && !is_before(before.node, begin, &edge, by_peers)) return false;
    }
  }
  return true;
}

bool EdgeGraph::is_before(Node first, Node last, const Edge* without, bool by_peers) const {
  std::set<Node> seen;
  std::vector<Node> left = {last};
  while (!left.empty()) {
    const Node node = left.back();
    left.pop_back();
    if (node == first) return true;
    if (!seen.insert(node).second) continue;
    for (const Before& before : before_[node]) {
      if (before.edge != nullptr && before.edge == without) continue;
      if (by_peers || !before.of_peer) left.push_back(before.node);
    }
  }
  return false;
}

}  // namespace cp::testing
