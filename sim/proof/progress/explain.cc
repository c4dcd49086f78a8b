#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "shared/base/index.h"
#include "sim/proof/progress/progress_model.h"

namespace cp::sim::progress {
namespace {

// What an operation waits for: another one, or (target kNone) one that its rank never issues.
struct Hop {
  OpId target = kNone;
  Rank rank = 0;    // of the target
  std::string how;  // of the same rank: why it comes before; empty: the operations meet
};

class Explainer {
 public:
  Explainer(const Model& model, const State& state) : model_(model), state_(state) {}

  void fill(ProgressReport& report) const {
    std::vector<OpId> heads;
    for (const auto& queues : model_.queues_of) {
      OpId first = kNone;
      for (const std::int32_t queue : queues) {
        const OpId head = state_.head(queue);
        if (head == kNone) continue;
        heads.push_back(head);
        if (first == kNone || head < first) first = head;
      }
      if (first != kNone) report.stuck.push_back(step_of(model_, model_.op(first)));
    }
    std::sort(report.stuck.begin(), report.stuck.end(),
              [](const ProgressStep& a, const ProgressStep& b) { return a.rank < b.rank; });
    std::vector<Link> best;
    for (const OpId head : heads) {
      const std::vector<Link> cycle = shortest(head, head);
      if (!cycle.empty() && (best.empty() || cycle.size() < best.size())) best = cycle;
    }
    report.is_cycle = !best.empty();
    for (std::size_t i = 0; i < heads.size() && best.empty(); ++i) best = shortest(heads[i], kNone);
    report.waits = waits_of(best);
  }

 private:
  struct Link {
    OpId from = kNone;
    Hop hop;
  };

  // The shortest way from `start` to `goal` along what waits for what; empty where there is none.
  std::vector<Link> shortest(OpId start, OpId goal) const {
    std::map<OpId, Link> reached_by;
    std::deque<OpId> open{start};
    while (!open.empty()) {
      const OpId here = open.front();
      open.pop_front();
      for (Hop& hop : hops(here)) {
        const OpId next = hop.target;
        if (next != goal && (next == kNone || next == start || reached_by.contains(next))) continue;
        Link link{here, std::move(hop)};
        if (next != goal) {
          reached_by.emplace(next, std::move(link));
          open.push_back(next);
          continue;
        }
        std::vector<Link> way{std::move(link)};
        while (way.back().from != start) way.push_back(reached_by.at(way.back().from));
        std::reverse(way.begin(), way.end());
        return way;
      }
    }
    return {};
  }

  // Only the links between ranks are waits; those within one say what it does first.
  std::vector<ProgressWait> waits_of(const std::vector<Link>& way) const {
    std::vector<ProgressWait> waits;
    for (std::size_t i = 0; i < way.size(); ++i) {
      const Hop& hop = way[i].hop;
      if (!hop.how.empty()) continue;
      ProgressWait wait{.at = step_of(model_, model_.op(way[i].from)),
                        .awaited_rank = hop.rank,
                        .awaited = {},
                        .behind = {}};
      if (hop.target != kNone) wait.awaited = step_of(model_, model_.op(hop.target));
      wait.behind = way[(i + 1) % way.size()].hop.how;
      if (hop.target == kNone) wait.behind.clear();
      waits.push_back(std::move(wait));
    }
    return waits;
  }

  std::vector<Hop> hops(OpId id) const {
    const Op& op = model_.op(id);
    const Rank self = model_.plans[idx(op.rank)].self;
    std::vector<Hop> found;
    const OpId head = state_.head(op.queue);
    if (head != id) {
      found.push_back({head, self, "on its stream"});
      return found;
    }
    if (state_.phase(op.queue) != Phase::waits) return meetings(op);
    for (const OpId earlier : op.after) {
      if (!state_.finished(earlier)) found.push_back({earlier, self, "by an edge"});
    }
    if (op.kind == Kind::kernel || state_.may_launch(op, true)) return found;
    for (const OpId other : model_.launches[idx(op.rank)]) {
      const bool holds_up = model_.rules.launch == Launch::begin_in_order ? !state_.begun(other)
                            : model_.rules.launch == Launch::one_in_order
                                ? !state_.finished(other)
                                : state_.begun(other) && !state_.finished(other);
      if (other == id || !holds_up) continue;
      const bool ordered = model_.rules.launch != Launch::one_at_a_time;
      found.push_back(
          {other, self, ordered ? "in the order of launches" : "as one operation at a time goes on"});
      break;
    }
    return found;
  }

  // Of an operation that is under way: for whom of other ranks.
  std::vector<Hop> meetings(const Op& op) const {
    const Communicator& communicator = model_.communicators[idx(op.communicator)];
    std::vector<Hop> found;
    if (op.kind == Kind::collective) {
      for (std::size_t member = 0; member < communicator.meetings.size(); ++member) {
        const std::vector<OpId>& ops = communicator.meetings[member];
        const OpId theirs = op.meeting < static_cast<std::int64_t>(ops.size()) ? ops[idx(op.meeting)] : kNone;
        if (theirs == kNone || !state_.begun(theirs))
          found.push_back({theirs, communicator.group.ranks[member], ""});
      }
      return found;
    }
    for (const Messages& messages : op.messages) {
      const Channel& channel = model_.channels[idx(messages.channel)];
      const Channel::End& others = messages.sends ? channel.receives : channel.sends;
      const Rank rank = communicator.group.ranks[idx(messages.sends ? channel.to : channel.from)];
      if (state_.phase(op.queue) == Phase::begun) {
        const OpId theirs = messages.last < static_cast<std::int64_t>(others.ops.size())
                                ? others.ops[idx(messages.last)]
                                : kNone;
        if (!state_.is_awaited(messages)) found.push_back({theirs, rank, ""});
      } else if (!state_.has_room(messages)) {
        found.push_back({awaited_message(messages, channel, others), rank, ""});
      }
    }
    return found;
  }

  // The first operation of the other end that makes enough room, or brings enough bytes.
  OpId awaited_message(const Messages& messages, const Channel& channel, const Channel::End& others) const {
    const Channel::End& mine = messages.sends ? channel.sends : channel.receives;
    const std::int64_t buffer = messages.sends ? model_.rules.buffer_bytes.value_or(0) : 0;
    const std::int64_t needed = mine.up_to[idx(messages.last)] - buffer;
    const auto enough = std::lower_bound(others.up_to.begin(), others.up_to.end(), needed);
    return enough == others.up_to.end() ? kNone : others.ops[idx(enough - others.up_to.begin())];
  }

  const Model& model_;
  const State& state_;
};

}  // namespace

void explain(const Model& model, const State& state, ProgressReport& report) {
  Explainer(model, state).fill(report);
}

}  // namespace cp::sim::progress
