// What members of a group have to agree on.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/proof/exhaustive/program_oracle.h"
#include "sim/proof/exhaustive/program_steps.h"

namespace cp::sim {
namespace {

using namespace program;

// What members of a collective agree on, as numbers.
Numbers agreement(const Call& call) {
  const auto of = [&](const View& view, std::int64_t more) -> Numbers {
    const DType dtype = call.plan->buffers[idx(view.buffer)].dtype;
    return {static_cast<std::int64_t>(dtype), view.numel(), more};
  };
  Numbers all = std::visit(
      Overloaded{[&](const AllGather& op) { return of(op.in, 0); },
                 [&](const ReduceScatter& op) { return of(op.out, static_cast<std::int64_t>(op.op)); },
                 [&](const AllReduce& op) { return of(op.out, static_cast<std::int64_t>(op.op)); },
                 [&](const AllToAll& op) { return of(op.out, 0); },
                 [&](const Broadcast& op) { return of(op.out, op.root); },
                 [&](const Exchange&) { return Numbers{}; }},
      *call.work);
  all.push_back(static_cast<std::int64_t>(call.work->index()));
  all.push_back(call.node->count);
  all.push_back(call.repeat);
  return all;
}

// (sender, receiver, which of theirs, elements, dtype) of both sides.
Refusal refuse_exchange(const std::vector<const Call*>& members) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::pair<std::int64_t, DType>>> sent, received;
  std::vector<Count> counts;
  for (const Call* call : members) {
    const Exchange& op = std::get<Exchange>(*call->work);
    const auto dtype = [&](const View& view) { return call->plan->buffers[idx(view.buffer)].dtype; };
    for (const Transfer& t : op.sends) {
      sent[{call->index, t.peer}].emplace_back(t.view.numel(), dtype(t.view));
      counts.push_back({call->index, t.peer, t.view.numel()});
    }
    for (const Transfer& t : op.recvs)
      received[{t.peer, call->index}].emplace_back(t.view.numel(), dtype(t.view));
  }
  if (sent != received) return "sends and receives that do not match";
  const Digest digest = counts_digest(counts);
  for (const Call* call : members) {
    if (std::get<Exchange>(*call->work).counts != digest) return "a digest of other counts";
  }
  return std::nullopt;
}

}  // namespace

Refusal refuse_meetings(std::span<const Plan> plans) {
  std::vector<std::vector<Node>> nodes;
  for (const Plan& plan : plans) nodes.push_back(unroll(plan));
  const std::vector<std::vector<Call>> calls = calls_of(plans, nodes);
  std::map<std::pair<std::string, std::vector<Rank>>, std::map<std::int32_t, std::vector<const Call*>>>
      by_group;
  for (std::size_t p = 0; p < plans.size(); ++p) {
    for (const Group& group : plans[p].groups)
      by_group[{group.name, group.ranks}][place_in(group, plans[p].self)];
    for (const Call& call : calls[p])
      by_group[{call.group->name, call.group->ranks}][call.index].push_back(&call);
  }
  for (const auto& [group, members] : by_group) {
    if (members.size() != group.second.size())
      return str("group ", group.first, " is not known to all its members");
    const std::vector<const Call*>& first = members.begin()->second;
    for (const auto& [index, all] : members) {
      if (all.size() != first.size())
        return str("members of ", group.first, " call it a different number of times");
    }
    for (std::size_t k = 0; k < first.size(); ++k) {
      std::vector<const Call*> meeting;
      for (const auto& [index, all] : members) {
        if (agreement(*all[k]) != agreement(*first[k]))
          return str("collective ", k, " of ", group.first, " differs");
        meeting.push_back(all[k]);
      }
      if (!std::holds_alternative<Exchange>(*first[k]->work)) continue;
      if (const Refusal refusal = refuse_exchange(meeting))
        return str("exchange ", k, " of ", group.first, ": ", *refusal);
    }
  }
  return std::nullopt;
}

}  // namespace cp::sim
