#include "sim/proof/exhaustive/program_steps.h"

#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp::sim::program {
namespace {

std::int64_t place_at(const View& view, std::int64_t iteration) {
  std::int64_t turn = iteration + view.advance.phase;
  if (view.advance.period != 0) turn %= view.advance.period;
  return view.offset + view.advance.stride * turn;
}

}  // namespace

std::vector<Touch> touches(const Work& work, std::int32_t index_in_group) {
  const auto in_out = [](const auto& op) {
    return std::vector<Touch>{{&op.in, true, false}, {&op.out, false, true}};
  };
  if (const Kernel* kernel = std::get_if<Kernel>(&work)) {
    if (const auto* copy = std::get_if<Copy>(kernel)) return in_out(*copy);
    if (const auto* cast = std::get_if<Cast>(kernel)) return in_out(*cast);
    if (const auto* fill = std::get_if<Fill>(kernel)) return {{&fill->out, false, true}};
    if (const auto* add = std::get_if<Accumulate>(kernel))
      return {{&add->in, true, false}, {&add->out, true, true}};
    if (const auto* scale = std::get_if<Scale>(kernel)) return {{&scale->data, true, true}};
    if (const auto* product = std::get_if<MatMul>(kernel))
      return {
          {&product->a, true, false}, {&product->b, true, false}, {&product->out, product->accumulate, true}};
    CP_INVARIANT(false, "the oracle of programs knows no ", operation_name(work));
  }
  const Collective& collective = std::get<Collective>(work);
  if (const auto* gather = std::get_if<AllGather>(&collective)) return in_out(*gather);
  if (const auto* scatter = std::get_if<ReduceScatter>(&collective)) return in_out(*scatter);
  if (const auto* reduce = std::get_if<AllReduce>(&collective)) return in_out(*reduce);
  if (const auto* all = std::get_if<AllToAll>(&collective)) return in_out(*all);
  if (const auto* broadcast = std::get_if<Broadcast>(&collective)) {
    if (index_in_group == broadcast->root) return in_out(*broadcast);
    return {{&broadcast->out, false, true}};
  }
  std::vector<Touch> all;
  for (const Transfer& send : std::get<Exchange>(collective).sends) all.push_back({&send.view, true, false});
  for (const Transfer& recv : std::get<Exchange>(collective).recvs) all.push_back({&recv.view, false, true});
  return all;
}

Numbers elements(const View& view, std::int64_t iteration) {
  Numbers all{place_at(view, iteration)};
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    Numbers next;
    next.reserve(all.size() * idx(view.shape[dim]));
    for (const std::int64_t element : all) {
      for (std::int64_t i = 0; i < view.shape[dim]; ++i) next.push_back(element + i * view.strides[dim]);
    }
    all = std::move(next);
  }
  return all;
}

bool is_one_run(const View& view) {
  const Numbers all = elements(view, 0);
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i] != all[0] + static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

std::int32_t place_in(const Group& group, Rank rank) {
  const auto at = std::find(group.ranks.begin(), group.ranks.end(), rank);
  return at == group.ranks.end() ? -1 : static_cast<std::int32_t>(at - group.ranks.begin());
}

std::vector<Node> unroll(const Plan& plan) {
  std::vector<Node> nodes;
  StepId first = 0;
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    if (const Step* step = std::get_if<Step>(&plan.segments[s])) {
      nodes.push_back({step, first++, 0, 1, s, false});
      continue;
    }
    const Repeat& repeat = std::get<Repeat>(plan.segments[s]);
    for (std::int64_t iteration = 0; iteration < repeat.count; ++iteration) {
      for (std::size_t i = 0; i < repeat.steps.size(); ++i)
        nodes.push_back({&repeat.steps[i], first + static_cast<StepId>(i), iteration, repeat.count, s, true});
    }
    first += static_cast<StepId>(repeat.steps.size());
  }
  return nodes;
}

std::int32_t index_of(const Plan& plan, const Work& work) {
  const Collective* collective = std::get_if<Collective>(&work);
  return collective == nullptr ? 0 : place_in(plan.groups[idx(group_of(*collective))], plan.self);
}

std::int64_t awaited(const std::vector<Node>& nodes, const Node& from, const Edge& edge) {
  std::int64_t found = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (node.id != edge.step) continue;
    const bool same = node.segment == from.segment && from.in_repeat;
    if (same ? node.iteration == from.iteration - edge.iterations_back : node.iteration == node.count - 1)
      found = static_cast<std::int64_t>(i);
  }
  return found;
}

std::vector<std::vector<Call>> calls_of(std::span<const Plan> plans,
                                        const std::vector<std::vector<Node>>& nodes) {
  std::vector<std::vector<Call>> calls(plans.size());
  for (std::size_t p = 0; p < plans.size(); ++p) {
    std::map<GroupId, std::vector<std::size_t>> repeats;
    for (const Node& node : nodes[p]) {
      const Collective* work = std::get_if<Collective>(&node.step->work);
      if (work == nullptr) continue;
      const Group& group = plans[p].groups[idx(group_of(*work))];
      Call call{&plans[p], &node, work, &group, place_in(group, plans[p].self), -1};
      if (node.count > 1) {
        std::vector<std::size_t>& seen = repeats[group_of(*work)];
        if (std::find(seen.begin(), seen.end(), node.segment) == seen.end()) seen.push_back(node.segment);
        call.repeat = static_cast<std::int64_t>(seen.size()) - 1;
      }
      calls[p].push_back(call);
    }
  }
  return calls;
}

}  // namespace cp::sim::program
