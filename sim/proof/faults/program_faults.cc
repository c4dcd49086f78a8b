#include "sim/proof/faults/program_faults.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/builder.h"
#include "shared/plan/plan_walk.h"
#include "sim/base/rebuild_plan.h"
#include "sim/fabric/programs.h"

namespace cp::sim {
namespace {

const Collective& collective_of(const Step& step) { return std::get<Collective>(step.work); }
const Group& group_in(const Plan& plan, const Collective& collective) {
  return plan.groups[idx(group_of(collective))];
}
std::int32_t group_size(const Plan& plan, const Collective& collective) {
  return static_cast<std::int32_t>(group_in(plan, collective).ranks.size());
}

// Every collective that is issued, in order; those of a Repeat again in each iteration. Stops when `visit`
// says so.
void for_each_collective(const Plan& plan, const std::function<bool(const StepRef&)>& visit) {
  const std::vector<StepRef> steps = steps_of(plan);
  for (PlanWalk walk(plan); !walk.done(); walk.next()) {
    const StepRef& ref = steps[idx(walk.id())];
    if (is_collective(*ref.step) && !visit(ref)) return;
  }
}

std::optional<StepRef> find_collective(const Plan& plan, std::int64_t number) {
  std::optional<StepRef> found;
  for_each_collective(plan, [&](const StepRef& ref) {
    if (number-- == 0) found = ref;
    return !found;
  });
  return found;
}

void add_as_it_is(PlanBuilder& builder, const Step& step) {
  std::visit([&](const auto& work) { builder.add(step.stream, work, step.label); }, step.work);
}

// ---- order ----------------------------------------------------------------------------------------------------------

// Whether one of the two writes a buffer that the other touches.
bool depend(const Plan& plan, const Step& a, const Step& b) {
  const auto touched = [&](const Step& step, bool writes_only) {
    std::set<BufferId> buffers;
    const auto* collective = std::get_if<Collective>(&step.work);
    const std::int32_t index = collective == nullptr ? 0 : index_in_group(plan, group_of(*collective));
    for (const Access& access : accesses(step.work, index)) {
      if (access.writes || !writes_only) buffers.insert(access.view->buffer);
    }
    return buffers;
  };
  const auto overlap = [](const std::set<BufferId>& x, const std::set<BufferId>& y) {
    return std::any_of(x.begin(), x.end(), [&](BufferId id) { return y.contains(id); });
  };
  return overlap(touched(a, true), touched(b, false)) || overlap(touched(a, false), touched(b, true));
}

// Issues the step after the next collective of its segment's kind: both outside of Repeats, or both in one.
std::optional<Plan> swap_with_next(const Plan& plan, const StepRef& first) {
  const std::vector<StepRef> steps = steps_of(plan);
  const auto is_inside = [&](const StepRef& ref) {
    return std::holds_alternative<Repeat>(plan.segments[idx(ref.segment)]);
  };
  const StepRef* next = nullptr;
  bool is_independent = true;
  for (const StepRef& ref : steps) {
    if (ref.id <= first.id) continue;
    if (is_inside(ref) != is_inside(first) || (is_inside(ref) && ref.segment != first.segment))
      return std::nullopt;
    is_independent = is_independent && !depend(plan, *first.step, *ref.step);
    if (!is_collective(*ref.step)) continue;
    next = &ref;
    break;
  }
  if (next == nullptr) return std::nullopt;
  const Collective &one = collective_of(*first.step), &two = collective_of(*next->step);
  const bool one_group = group_of(one) == group_of(two);
  const bool are_equal =
      arguments_of(plan, one, group_size(plan, one)) == arguments_of(plan, two, group_size(plan, two));
  if (one_group ? are_equal : !is_independent) return std::nullopt;
  return rebuild_plan(plan, [&](PlanBuilder& builder, const Step& step, StepId id) {
    if (id == first.id) return;
    add_as_it_is(builder, step);
    if (id == next->id) add_as_it_is(builder, *first.step);
  });
}

// ---- arguments ------------------------------------------------------------------------------------------------------

// Changes what a collective is called with; false where there is no such change. Views of its own come from
// the builder.
using Change = std::function<bool(PlanBuilder&, Step&)>;

std::optional<Plan> change(const Plan& plan, const StepRef& place, const Change& change) {
  bool changed = false;
  Plan damaged = rebuild_plan(plan, [&](PlanBuilder& builder, const Step& step, StepId id) {
    if (id != place.id) return add_as_it_is(builder, step);
    Step other = step;
    changed = change(builder, other);
    add_as_it_is(builder, other);
  });
  if (!changed) return std::nullopt;
  return damaged;
}

// In a buffer of its own, which copy engines reach where they reached the one of `now`.
View own_view(PlanBuilder& builder, const View& now, DType dtype, std::int64_t numel) {
  const BufferId buffer = builder.is_symmetric(now.buffer) ? builder.symmetric("fault", dtype, numel)
                                                           : builder.temporary("fault", dtype, numel);
  return flat_view(buffer, 0, numel);
}

Transfer own_transfer(PlanBuilder& builder, const Transfer& now, DType dtype, std::int64_t numel) {
  Transfer transfer{now.peer, own_view(builder, now.view, dtype, numel)};
  if (!is_absent(now.there)) transfer.there = own_view(builder, now.there, dtype, numel);
  return transfer;
}

// Of a collective with blocks, so that each has `count` elements of the dtype.
void set_blocks(PlanBuilder& builder, Collective& collective, std::int64_t members, DType dtype,
                std::int64_t count) {
  const auto set = [&](auto& op, std::int64_t in_blocks, std::int64_t out_blocks) {
    op.in = own_view(builder, op.in, dtype, in_blocks * count);
    op.out = own_view(builder, op.out, dtype, out_blocks * count);
  };
  std::visit(
      Overloaded{[&](AllGather& op) { set(op, 1, members); }, [&](ReduceScatter& op) { set(op, members, 1); },
                 [&](AllReduce& op) { set(op, 1, 1); }, [&](AllToAll& op) { set(op, members, members); },
                 [&](Broadcast& op) { set(op, 1, 1); }, [](Exchange&) {}},
      collective);
}

ReduceOp other_than(ReduceOp op) { return op == ReduceOp::sum ? ReduceOp::max : ReduceOp::sum; }

// One that sums too, averages too.
std::optional<DType> other_than(DType dtype, const Target& target) {
  for (const DType other : {DType::bf16, DType::f32, DType::f16}) {
    if (other != dtype && target.dtypes.contains(other)) return other;
  }
  return std::nullopt;
}

bool set_other_reduction(Collective& collective) {
  return std::visit(
      Overloaded{[](ReduceScatter& op) { return op.op = other_than(op.op), true; },
                 [](AllReduce& op) { return op.op = other_than(op.op), true; }, [](auto&) { return false; }},
      collective);
}

bool set_other_root(PlanBuilder& builder, const Plan& plan, Collective& collective) {
  auto* broadcast = std::get_if<Broadcast>(&collective);
  if (broadcast == nullptr) return false;
  broadcast->root = (broadcast->root + 1) % group_size(plan, collective);
  if (broadcast->root == index_in_group(plan, broadcast->group))
    broadcast->in =
        own_view(builder, broadcast->out, builder.dtype(broadcast->out.buffer), broadcast->out.numel());
  return true;
}

bool set_other_dtype(PlanBuilder& builder, const Plan& plan, Collective& collective) {
  const std::int32_t members = group_size(plan, collective);
  if (auto* exchange = std::get_if<Exchange>(&collective)) {
    for (std::vector<Transfer>* side : {&exchange->sends, &exchange->recvs}) {
      for (Transfer& transfer : *side) {
        const auto other = other_than(builder.dtype(transfer.view.buffer), builder.target());
        if (!other) return false;
        transfer = own_transfer(builder, transfer, *other, transfer.view.numel());
      }
    }
    return !exchange->sends.empty() || !exchange->recvs.empty();
  }
  const CallArguments now = arguments_of(plan, collective, members);
  const auto other = other_than(now.dtype, builder.target());
  if (!other) return false;
  set_blocks(builder, collective, members, *other, now.count);
  return true;
}

// The counts of an exchange over all members, from the plans of all: the `sequence`-th collective on the
// group.
std::optional<std::vector<Count>> counts_of(std::span<const Plan> plans, const Group& group,
                                            std::int64_t sequence) {
  std::vector<Count> counts;
  for (std::size_t index = 0; index < group.ranks.size(); ++index) {
    const auto plan = std::ranges::find(plans, group.ranks[index], &Plan::self);
    if (plan == plans.end()) return std::nullopt;
    std::int64_t at = sequence;
    const Exchange* exchange = nullptr;
    for_each_collective(*plan, [&](const StepRef& ref) {
      const Collective& collective = collective_of(*ref.step);
      if (group_in(*plan, collective) != group || at-- > 0) return true;
      exchange = std::get_if<Exchange>(&collective);
      return false;
    });
    if (exchange == nullptr) return std::nullopt;
    for (const Transfer& send : exchange->sends)
      counts.push_back({static_cast<std::int32_t>(index), send.peer, send.view.numel()});
  }
  return counts;
}

// One element of the first send goes to another member.
bool set_other_peers(PlanBuilder& builder, std::span<const Plan> plans, const Plan& plan,
                     std::int64_t sequence, Exchange& exchange) {
  const Group& group = plan.groups[idx(exchange.group)];
  const std::int32_t self = index_in_group(plan, exchange.group),
                     members = static_cast<std::int32_t>(group.ranks.size());
  std::optional<std::vector<Count>> counts = counts_of(plans, group, sequence);
  if (exchange.sends.empty() || members < 3 || !counts) return false;
  const Transfer first = exchange.sends.front();
  const std::int32_t from_peer = first.peer;
  std::int32_t to_peer = (from_peer + 1) % members;
  if (to_peer == self) to_peer = (to_peer + 1) % members;
  const DType dtype = builder.dtype(first.view.buffer);
  const std::int64_t left = first.view.numel() - 1;
  if (left > 0) {
    exchange.sends.front() = own_transfer(builder, first, dtype, left);
  } else {
    exchange.sends.erase(exchange.sends.begin());
  }
  exchange.sends.push_back(own_transfer(builder, first, dtype, 1));
  exchange.sends.back().peer = to_peer;
  counts->push_back({self, from_peer, -1});
  counts->push_back({self, to_peer, 1});
  // counts_digest leaves out what is 0, but not what sums to 0.
  std::vector<Count> sums;
  std::sort(counts->begin(), counts->end());
  for (const Count& count : *counts) {
    if (!sums.empty() && sums.back().from == count.from && sums.back().to == count.to) {
      sums.back().numel += count.numel;
    } else {
      sums.push_back(count);
    }
  }
  exchange.counts = counts_digest(std::move(sums));
  return true;
}

bool set_other_group(PlanBuilder& builder, const Plan& plan, Step& step) {
  Collective& collective = std::get<Collective>(step.work);
  const GroupId now = group_of(collective);
  const std::size_t members = plan.groups[idx(now)].ranks.size();
  GroupId other = -1;
  for (GroupId id = 0; id < static_cast<GroupId>(plan.groups.size()) && other < 0; ++id) {
    const std::vector<Rank>& ranks = plan.groups[idx(id)].ranks;
    const auto place = [&](const std::vector<Rank>& all) {
      return std::find(all.begin(), all.end(), plan.self) - all.begin();
    };
    // The rank has the same index, so that peers, blocks in place and the root mean what they did.
    if (id != now && ranks.size() == members && place(ranks) == place(plan.groups[idx(now)].ranks) &&
        plan.groups[idx(id)].copy_engine == plan.groups[idx(now)].copy_engine)
      other = id;
  }
  if (other < 0) {
    other = builder.group(plan.groups[idx(now)].name + "_other", plan.groups[idx(now)].ranks,
                          plan.groups[idx(now)].copy_engine);
  } else {
    for (const StepRef& ref : steps_of(plan)) {
      if (is_collective(*ref.step) && group_of(collective_of(*ref.step)) == other)
        step.stream = ref.step->stream;
    }
  }
  std::visit([&](auto& op) { op.group = other; }, collective);
  return true;
}

std::int64_t sequence_of(const Plan& plan, std::int64_t number) {
  std::vector<GroupId> groups;
  for_each_collective(plan, [&](const StepRef& ref) {
    groups.push_back(group_of(collective_of(*ref.step)));
    return number-- > 0;
  });
  return std::count(groups.begin(), groups.end(), groups.back()) - 1;
}

bool meets_others(const Plan& plan) {
  const std::vector<StepRef> steps = steps_of(plan);
  return std::any_of(steps.begin(), steps.end(), [&](const StepRef& ref) {
    return is_collective(*ref.step) && group_size(plan, collective_of(*ref.step)) > 1;
  });
}

}  // namespace

std::int64_t num_collectives(const Plan& plan) {
  std::int64_t count = 0;
  for (const StepRef& ref : steps_of(plan)) count += is_collective(*ref.step) ? ref.count : 0;
  return count;
}

std::optional<Plan> damage_program(std::span<const Plan> plans, const InjectedFault& fault,
                                   const Plan* other) {
  if (!is_of_program(fault.kind)) throw InvalidInput(str(name(fault.kind), " is no fault of a program"));
  const auto found = std::ranges::find(plans, fault.rank, &Plan::self);
  if (found == plans.end()) return std::nullopt;
  const Plan& plan = *found;
  if (fault.kind == FaultKind::other_plan) {
    if (other == nullptr || other->self != plan.self || other->inputs == plan.inputs) return std::nullopt;
    if (!meets_others(plan) && !meets_others(*other)) return std::nullopt;
    return *other;
  }
  const std::optional<StepRef> place = find_collective(plan, fault.collective);
  if (!place || group_size(plan, collective_of(*place->step)) < 2) return std::nullopt;
  const auto edit = [&](const std::function<bool(PlanBuilder&, Collective&)>& set) {
    return change(plan, *place, [&](PlanBuilder& builder, Step& step) {
      return set(builder, std::get<Collective>(step.work));
    });
  };
  switch (fault.kind) {
    case FaultKind::skip_collective:
      return rebuild_plan(plan, [&](PlanBuilder& builder, const Step& step, StepId id) {
        if (id != place->id) add_as_it_is(builder, step);
      });
    case FaultKind::repeat_collective:
      return rebuild_plan(plan, [&](PlanBuilder& builder, const Step& step, StepId id) {
        add_as_it_is(builder, step);
        if (id == place->id) add_as_it_is(builder, step);
      });
    case FaultKind::swap_collectives:
      return swap_with_next(plan, *place);
    case FaultKind::other_reduction:
      return edit([](PlanBuilder&, Collective& collective) { return set_other_reduction(collective); });
    case FaultKind::other_root:
      return edit([&](PlanBuilder& builder, Collective& collective) {
        return set_other_root(builder, plan, collective);
      });
    case FaultKind::other_dtype:
      return edit([&](PlanBuilder& builder, Collective& collective) {
        return set_other_dtype(builder, plan, collective);
      });
    case FaultKind::other_split:
      return edit([&](PlanBuilder& builder, Collective& collective) {
        if (auto* exchange = std::get_if<Exchange>(&collective))
          return set_other_peers(builder, plans, plan, sequence_of(plan, fault.collective), *exchange);
        const CallArguments now = arguments_of(plan, collective, group_size(plan, collective));
        set_blocks(builder, collective, group_size(plan, collective), now.dtype, now.count + 1);
        return true;
      });
    case FaultKind::other_group:
      return change(plan, *place,
                    [&](PlanBuilder& builder, Step& step) { return set_other_group(builder, plan, step); });
    default:
      return std::nullopt;
  }
}

}  // namespace cp::sim
