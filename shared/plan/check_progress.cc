#include <algorithm>
#include <deque>

#include "shared/base/index.h"
#include "shared/plan/canonical.h"
#include "shared/plan/check_internal.h"

namespace cp::checker {
namespace {

// Runs all ranks with one collective in flight each, in issue order: this is the strictest device. Steps wait
// only for steps that were issued before them (check_structure), so that every wait between two collectives
// of a rank, by stream or by edge, direct or through kernels, is one of this order: where it has no cycle, no
// device has one, with any number in flight.
//
// A shortest cycle passes each rank at most once, hence at most as many iterations of a Repeat as there are
// ranks, and stays a cycle when the iterations between are left out: this many iterations show whatever all
// would show.
class Progress {
 public:
  explicit Progress(const World& world)
      : world_(world),
        most_iterations_(static_cast<std::int64_t>(world.ranks.size())),
        cursors_(world.ranks.size()),
        arrived_(world.communicators.size(), 0) {}

  void check() {
    for (std::size_t i = 0; i < cursors_.size(); ++i) arrive(i);
    while (!complete_.empty()) {
      const std::size_t communicator = complete_.back();
      complete_.pop_back();
      arrived_[communicator] = 0;
      for (const Communicator::Member& member : world_.communicators[communicator].members) {
        advance(idx(member.plan));
        arrive(idx(member.plan));
      }
    }
    for (std::size_t i = 0; i < cursors_.size(); ++i) {
      if (!finished(i)) fail();
    }
  }

 private:
  // At which collective a rank waits.
  struct Cursor {
    std::size_t at = 0;     // of RankPlan::collectives
    std::size_t begin = 0;  // of its Repeat's body there
    std::int64_t iteration = 0;
  };

  bool finished(std::size_t rank) const { return cursors_[rank].at == world_.ranks[rank].collectives.size(); }
  const CollectiveRef& waits_in(std::size_t rank) const {
    return world_.ranks[rank].collectives[cursors_[rank].at];
  }
  std::size_t communicator_of(std::size_t rank) const {
    return idx(world_.ranks[rank].communicator[idx(waits_in(rank).group)]);
  }

  void arrive(std::size_t rank) {
    if (finished(rank)) return;
    const std::size_t communicator = communicator_of(rank);
    if (++arrived_[communicator] == world_.communicators[communicator].members.size()) {
      complete_.push_back(communicator);
    }
  }

  void advance(std::size_t rank) {
    const RankPlan& plan = world_.ranks[rank];
    Cursor& cursor = cursors_[rank];
    const CollectiveRef& last = plan.collectives[cursor.at++];
    const std::int32_t segment = plan.steps[idx(last.step)].segment;
    const bool body_goes_on =
        !finished(rank) && plan.steps[idx(plan.collectives[cursor.at].step)].segment == segment;
    if (body_goes_on) return;
    if (++cursor.iteration < std::min(last.count, most_iterations_)) {
      cursor.at = cursor.begin;
    } else {
      cursor.begin = cursor.at;
      cursor.iteration = 0;
    }
  }

  // From where some rank waits, along "has a member that waits elsewhere" until a communicator comes again;
  // of all starts the shortest. Entries are (rank, the communicator in which it waits).
  std::vector<std::size_t> shortest_cycle() const {
    std::vector<std::size_t> best;
    for (std::size_t start = 0; start < world_.communicators.size(); ++start) {
      if (arrived_[start] == 0) continue;
      const std::vector<std::size_t> cycle = cycle_through(start);
      if (!cycle.empty() && (best.empty() || cycle.size() < best.size())) best = cycle;
    }
    return best;
  }

  // The ranks of a shortest cycle through `start`, each of which waits for the next, the last one for the
  // first.
  std::vector<std::size_t> cycle_through(std::size_t start) const {
    struct Visit {
      bool seen = false;
      std::size_t by = 0;  // the member that waits here and is awaited in `from`
      std::size_t from = 0;
    };
    // Breadth first over communicators: from `here`, each member that waits leads to the communicator that it
    // waits in. The first path that comes back to `start` is a shortest one.
    std::vector<Visit> visits(world_.communicators.size());
    std::deque<std::size_t> queue{start};
    while (!queue.empty()) {
      const std::size_t here = queue.front();
      queue.pop_front();
      for (const Communicator::Member& member : world_.communicators[here].members) {
        const std::size_t rank = idx(member.plan);
        if (finished(rank)) continue;
        const std::size_t next = communicator_of(rank);
        if (next == here || visits[next].seen) continue;
        visits[next] = {true, rank, here};
        if (next != start) {
          queue.push_back(next);
          continue;
        }
        std::vector<std::size_t> ranks;
        std::size_t back = start;
        do {
          ranks.push_back(visits[back].by);
          back = visits[back].from;
        } while (back != start);
        std::reverse(ranks.begin(), ranks.end());
        return ranks;
      }
    }
    return {};
  }

  // Of one rank's wait.
  ErrorFacts facts_of(std::size_t rank) const {
    const CollectiveRef& ref = waits_in(rank);
    const Plan& plan = *world_.ranks[rank].plan;
    return {.operation = std::string(operation_name(*ref.work)),
            .group = canonical_name(plan.groups[idx(ref.group)]),
            .sequence = ref.sequence + cursors_[rank].iteration * ref.per_iteration,
            .rank = plan.self,
            .step = ref.step};
  }

  [[noreturn]] void fail() const {
    const std::vector<std::size_t> ranks = shortest_cycle();
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const RankPlan& rank = world_.ranks[ranks[i]];
      const CollectiveRef& ref = waits_in(ranks[i]);
      parts.push_back(str("rank ", rank.plan->self, " waits in ", step_text(*rank.plan, ref.step), " (",
                          collective_text(rank, ref, cursors_[ranks[i]].iteration), ") for rank ",
                          world_.ranks[ranks[(i + 1) % ranks.size()]].plan->self));
    }
    throw Deadlock(str("a wait cycle, with one collective in flight per rank: ", join(parts, "; "),
                       "; ranks that share groups issue the collectives of all of them in one order"),
                   facts_of(ranks.front()));
  }

  const World& world_;
  const std::int64_t most_iterations_;
  std::vector<Cursor> cursors_;
  std::vector<std::size_t> arrived_;   // members that wait in the next collective, by communicator
  std::vector<std::size_t> complete_;  // communicators in whose next collective all members wait
};

}  // namespace

void check_progress(const World& world) { Progress(world).check(); }

}  // namespace cp::checker
