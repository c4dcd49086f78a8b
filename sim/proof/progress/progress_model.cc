#include "sim/proof/progress/progress_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/canonical.h"
#include "shared/plan/plan_walk.h"

namespace cp::sim::progress {
namespace {

struct FullTransfer {
  std::int32_t distance = 0, peer = -1;
  bool sends = false;
  std::int64_t bytes = 0;
};

class Maker {
 public:
  Maker(std::span<const Plan> plans, const ProgressRules& rules) {
    model_.plans = plans;
    model_.rules = rules;
  }

  Model make() {
    find_communicators();
    model_.queues_of.resize(model_.plans.size());
    model_.launches.resize(model_.plans.size());
    for (std::size_t i = 0; i < model_.plans.size(); ++i) add_plan(static_cast<std::int32_t>(i));
    find_mismatch();
    return std::move(model_);
  }

 private:
  void find_communicators() {
    std::map<Rank, std::int32_t> plan_of;
    for (std::size_t i = 0; i < model_.plans.size(); ++i) {
      const Rank rank = model_.plans[i].self;
      if (!plan_of.emplace(rank, static_cast<std::int32_t>(i)).second)
        throw InvalidInput(str("two plans for rank ", rank, "; each rank has one"));
    }
    std::map<std::pair<std::string, std::vector<Rank>>, std::int32_t> known;
    for (const Plan& plan : model_.plans) {
      std::vector<std::int32_t>& mine = communicator_of_.emplace_back();
      for (const Group& group : plan.groups) {
        const auto [at, is_new] = known.emplace(std::pair(group.name, group.ranks),
                                                static_cast<std::int32_t>(model_.communicators.size()));
        mine.push_back(at->second);
        if (!is_new) continue;
        Communicator made{.group = group, .plans = {}, .meetings = {}};
        for (const Rank rank : group.ranks) {
          const auto found = plan_of.find(rank);
          made.plans.push_back(found == plan_of.end() ? -1 : found->second);
        }
        made.meetings.resize(group.ranks.size());
        model_.communicators.push_back(std::move(made));
        stream_of_.emplace_back(group.ranks.size(), -1);
        sequences_.emplace_back(group.ranks.size(), 0);
      }
    }
  }

  void add_plan(std::int32_t index) {
    const Plan& plan = model_.plans[idx(index)];
    first_queue_ = static_cast<std::int32_t>(model_.queues.size());
    for (std::size_t i = 0; i < plan.streams.size(); ++i) {
      model_.queues_of[idx(index)].push_back(static_cast<std::int32_t>(model_.queues.size()));
      model_.queues.emplace_back();
    }
    const std::vector<StepRef> steps = steps_of(plan);
    steps_ = &steps;
    ops_of_.assign(steps.size(), {});
    for (PlanWalk walk(plan); !walk.done(); walk.next())
      add_step(index, steps[idx(walk.id())], walk.iteration());
  }

  void add_step(std::int32_t rank, const StepRef& ref, std::int64_t iteration) {
    const Plan& plan = model_.plans[idx(rank)];
    const Step& step = *ref.step;
    if (step.stream < 0 || idx(step.stream) >= plan.streams.size()) {
      throw InvalidInput(str("rank ", plan.self, " step ", ref.id, " is on stream ", step.stream,
                             "; the plan has ", plan.streams.size()));
    }
    Op op;
    op.rank = rank;
    op.queue = first_queue_ + step.stream;
    op.step = &step;
    op.id = ref.id;
    op.iteration = iteration;
    for (const Edge& edge : step.after) add_edge(plan, ref, edge, op);
    const auto* collective = std::get_if<Collective>(&step.work);
    if (collective == nullptr) {
      add(std::move(op));
      return;
    }
    join(plan, ref, *collective, op);
    const auto* exchange = std::get_if<Exchange>(collective);
    if (exchange == nullptr || model_.rules.meeting == Meeting::members) {
      add_meeting(std::move(op));
    } else {
      add_exchange(plan, *exchange, op);
    }
  }

  // An edge to an iteration that never was is none.
  void add_edge(const Plan& plan, const StepRef& ref, const Edge& edge, Op& op) {
    if (edge.step < 0 || idx(edge.step) >= steps_->size()) {
      throw InvalidInput(str("rank ", plan.self, " step ", ref.id, " comes after step ", edge.step,
                             "; the plan has ", steps_->size()));
    }
    const std::vector<OpId>& targets = ops_of_[idx(edge.step)];
    const StepRef& target = (*steps_)[idx(edge.step)];
    const bool inside = target.segment == ref.segment;
    const std::int64_t iteration = inside ? op.iteration - edge.iterations_back : target.count - 1;
    if (iteration < 0) return;
    if (iteration >= static_cast<std::int64_t>(targets.size())) {
      throw InvalidInput(str("rank ", plan.self, " step ", ref.id, " comes after step ", edge.step,
                             ", which is issued later; edges go back in issue order"));
    }
    op.after.push_back(targets[idx(iteration)]);
  }

  void join(const Plan& plan, const StepRef& ref, const Collective& collective, Op& op) {
    const GroupId group = group_of(collective);
    if (group < 0 || idx(group) >= plan.groups.size()) {
      throw InvalidInput(str("rank ", plan.self, " step ", ref.id, " is on group ", group, "; the plan has ",
                             plan.groups.size()));
    }
    op.communicator = communicator_of_[idx(op.rank)][idx(group)];
    member_ = index_in_group(plan, group);
    StreamId& stream = stream_of_[idx(op.communicator)][idx(member_)];
    if (stream >= 0 && stream != ref.step->stream) {
      throw InvalidInput(str("rank ", plan.self, " issues collectives of group ",
                             canonical_name(plan.groups[idx(group)]), " on streams ", stream, " and ",
                             ref.step->stream, "; a group has one stream on each rank"));
    }
    stream = ref.step->stream;
    op.sequence = sequences_[idx(op.communicator)][idx(member_)]++;
  }

  void add_meeting(Op op) {
    op.kind = Kind::collective;
    std::vector<OpId>& meetings = model_.communicators[idx(op.communicator)].meetings[idx(member_)];
    op.meeting = static_cast<std::int64_t>(meetings.size());
    meetings.push_back(static_cast<OpId>(model_.ops.size()));
    add(std::move(op));
  }

  void add_exchange(const Plan& plan, const Exchange& exchange, const Op& op) {
    const auto size =
        static_cast<std::int32_t>(model_.communicators[idx(op.communicator)].group.ranks.size());
    std::vector<FullTransfer> transfers;
    const auto collect = [&](const std::vector<Transfer>& list, bool sends) {
      for (const Transfer& transfer : list) {
        if (transfer.peer < 0 || transfer.peer >= size) {
          throw InvalidInput(str("rank ", plan.self, " step ", op.id, " has a transfer with member ",
                                 transfer.peer, " of a group of ", size));
        }
        const Buffer& buffer = plan.buffers.at(idx(transfer.view.buffer));
        const std::int32_t distance = sends ? transfer.peer - member_ : member_ - transfer.peer;
        transfers.push_back({(distance + size) % size, transfer.peer, sends,
                             transfer.view.numel() * size_bytes(buffer.dtype)});
      }
    };
    collect(exchange.sends, true);
    collect(exchange.recvs, false);
    const std::int64_t all = static_cast<std::int64_t>(transfers.size());
    const std::int64_t most = model_.rules.transfers_per_launch > 0 ? model_.rules.transfers_per_launch : all;
    if (most < all) {
      std::stable_sort(transfers.begin(), transfers.end(),
                       [](const FullTransfer& a, const FullTransfer& b) { return a.distance < b.distance; });
    }
    std::int64_t begin = 0;
    do {
      std::int64_t end = begin;  // the transfers of one distance stay together
      while (end < all && (end == begin || end_of_distance(transfers, end) - begin <= most)) {
        end = end_of_distance(transfers, end);
      }
      add_launch(op, std::span(transfers).subspan(idx(begin), idx(end - begin)));
      begin = end;
    } while (begin < all);
  }

  static std::int64_t end_of_distance(const std::vector<FullTransfer>& transfers, std::int64_t begin) {
    std::int64_t end = begin;
    while (end < static_cast<std::int64_t>(transfers.size()) &&
           transfers[idx(end)].distance == transfers[idx(begin)].distance) {
      ++end;
    }
    return end;
  }

  void add_launch(Op op, std::span<const FullTransfer> transfers) {
    op.kind = Kind::exchange;
    const auto id = static_cast<OpId>(model_.ops.size());
    for (const FullTransfer& transfer : transfers) {
      const auto [from, to] =
          transfer.sends ? std::pair(member_, transfer.peer) : std::pair(transfer.peer, member_);
      const std::int32_t channel = channel_of(op.communicator, from, to);
      Channel::End& end =
          transfer.sends ? model_.channels[idx(channel)].sends : model_.channels[idx(channel)].receives;
      const auto message = static_cast<std::int64_t>(end.ops.size());
      end.up_to.push_back((end.up_to.empty() ? 0 : end.up_to.back()) + transfer.bytes);
      end.ops.push_back(id);
      const auto same = std::find_if(op.messages.begin(), op.messages.end(), [&](const Messages& messages) {
        return messages.channel == channel && messages.sends == transfer.sends;
      });
      if (same != op.messages.end()) {
        same->last = message;
      } else {
        op.messages.push_back({channel, transfer.sends, message, message});
      }
    }
    add(std::move(op));
  }

  std::int32_t channel_of(std::int32_t communicator, std::int32_t from, std::int32_t to) {
    const auto [at, is_new] = channels_.emplace(std::tuple(communicator, from, to),
                                                static_cast<std::int32_t>(model_.channels.size()));
    if (is_new) model_.channels.push_back({communicator, from, to, {}, {}});
    return at->second;
  }

  void add(Op op) {
    const auto id = static_cast<OpId>(model_.ops.size());
    std::vector<OpId>& queue = model_.queues[idx(op.queue)];
    op.position = static_cast<std::int64_t>(queue.size());
    queue.push_back(id);
    if (op.kind != Kind::kernel) {
      std::vector<OpId>& launches = model_.launches[idx(op.rank)];
      op.launch = static_cast<std::int64_t>(launches.size());
      launches.push_back(id);
    }
    // Of an exchange in several launches the last one is the step's.
    std::vector<OpId>& of_step = ops_of_[idx(op.id)];
    if (static_cast<std::int64_t>(of_step.size()) == op.iteration) {
      of_step.push_back(id);
    } else {
      of_step.back() = id;
    }
    model_.ops.push_back(std::move(op));
  }

  // ---- what differs between those who meet ----

  void find_mismatch() {
    for (const Communicator& communicator : model_.communicators) {
      for (std::size_t member = 0; member < communicator.meetings.size() && model_.mismatch.empty();
           ++member) {
        compare_meetings(communicator, member);
      }
    }
    for (const Channel& channel : model_.channels) {
      if (!model_.mismatch.empty()) return;
      compare_ends(channel);
    }
  }

  void compare_meetings(const Communicator& communicator, std::size_t member) {
    const std::vector<OpId>&first = communicator.meetings.front(), &mine = communicator.meetings[member];
    for (std::size_t i = 0; i < std::min(first.size(), mine.size()); ++i) {
      const Op &a = model_.op(first[i]), &b = model_.op(mine[i]);
      if (operation_name(a.step->work) == operation_name(b.step->work)) continue;
      model_.mismatch = str(to_string(step_of(model_, a)), " meets ", to_string(step_of(model_, b)));
      return;
    }
  }

  void compare_ends(const Channel& channel) {
    const Channel::End &sends = channel.sends, &receives = channel.receives;
    for (std::size_t i = 0; i < std::min(sends.ops.size(), receives.ops.size()); ++i) {
      if (sends.up_to[i] == receives.up_to[i]) continue;
      const auto bytes = [&](const Channel::End& end) {
        return end.up_to[i] - (i == 0 ? 0 : end.up_to[i - 1]);
      };
      model_.mismatch = str(to_string(step_of(model_, model_.op(sends.ops[i]))), " sends ", bytes(sends),
                            " bytes, of which ", to_string(step_of(model_, model_.op(receives.ops[i]))),
                            " expects ", bytes(receives));
      return;
    }
  }

  Model model_;
  std::vector<std::vector<std::int32_t>> communicator_of_;  // by plan and GroupId
  std::vector<std::vector<StreamId>> stream_of_;            // by communicator and member
  std::vector<std::vector<std::int64_t>> sequences_;        // by communicator and member
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::int32_t> channels_;
  // Of the plan that is added:
  const std::vector<StepRef>* steps_ = nullptr;
  std::vector<std::vector<OpId>> ops_of_;  // by StepId and iteration
  std::int32_t first_queue_ = 0;
  std::int32_t member_ = 0;  // in the group of the step that is added
};

}  // namespace

std::int64_t count_operations(std::span<const Plan> plans) {
  std::int64_t count = 0;
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) count += ref.count;
  }
  return count;
}

Model make_model(std::span<const Plan> plans, const ProgressRules& rules) {
  return Maker(plans, rules).make();
}

ProgressStep step_of(const Model& model, const Op& op) {
  const Plan& plan = model.plans[idx(op.rank)];
  ProgressStep step{.rank = plan.self,
                    .step = op.id,
                    .iteration = op.iteration,
                    .operation = std::string(operation_name(op.step->work)),
                    .stream = plan.streams[idx(op.step->stream)],
                    .group = {},
                    .sequence = op.sequence};
  if (op.communicator >= 0) step.group = model.communicators[idx(op.communicator)].group;
  return step;
}

}  // namespace cp::sim::progress
