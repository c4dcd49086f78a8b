#include "shared/plan/check_sequences.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"
#include "shared/plan/plan_walk.h"
#include "shared/plan/step_text.h"

namespace cp {
namespace {

// A rank at the collective that it waits in.
class SequenceCursor {
 public:
  explicit SequenceCursor(const PlanSequence& plans) : plans_(&plans) {
    CP_INVARIANT(!plans.empty(), "a rank has no plans");
    rank_ = plans.front()->self;
    enter();
  }

  Rank rank() const { return rank_; }
  bool is_done() const { return at_ == plans_->size(); }
  void next() {
    walk_->next();
    settle();
  }
  const Plan& plan() const { return *(*plans_)[at_]; }
  const Collective& collective() const { return std::get<Collective>(walk_->step().work); }
  std::string operation() const { return std::string(operation_name(walk_->step().work)); }
  const Group& group() const { return plan().groups[idx(group_of(collective()))]; }
  // "plan 3 of 12, step 7 ..."
  std::string text() const {
    return str("plan ", at_ + 1, " of ", plans_->size(), ", ", step_text(plan(), walk_->id()), " on ",
               canonical_name(group()));
  }
  StepId step() const { return walk_->id(); }

 private:
  void enter() {
    while (at_ < plans_->size()) {
      walk_.emplace(plan());
      if (find()) return;
      ++at_;
    }
  }
  void settle() {
    if (find()) return;
    ++at_;
    enter();
  }
  // The next collective of the plan.
  bool find() {
    while (!walk_->done() && !std::holds_alternative<Collective>(walk_->step().work)) walk_->next();
    return !walk_->done();
  }

  const PlanSequence* plans_;
  Rank rank_ = -1;
  std::size_t at_ = 0;
  std::optional<PlanWalk> walk_;
};

class Meetings {
 public:
  explicit Meetings(std::span<const PlanSequence> ranks) {
    for (const PlanSequence& plans : ranks) {
      cursors_.emplace_back(plans);
      place_of_[cursors_.back().rank()] = cursors_.size() - 1;
    }
  }

  void check() {
    for (std::size_t i = 0; i < cursors_.size(); ++i) come(i);
    while (!complete_.empty()) {
      const std::vector<std::size_t> members = std::move(complete_.back());
      complete_.pop_back();
      compare(members);
      for (const std::size_t member : members) {
        cursors_[member].next();
        come(member);
      }
    }
    for (const SequenceCursor& cursor : cursors_) {
      if (!cursor.is_done()) fail();
    }
  }

 private:
  void come(std::size_t rank) {
    const SequenceCursor& cursor = cursors_[rank];
    if (cursor.is_done()) return;
    std::vector<std::size_t>& waiting = waiting_[canonical_name(cursor.group())];
    waiting.push_back(rank);
    if (waiting.size() == cursor.group().ranks.size()) complete_.push_back(std::exchange(waiting, {}));
  }

  void compare(const std::vector<std::size_t>& members) const {
    const SequenceCursor& first = cursors_[members.front()];
    const Digest digest = canonical_digest(first.plan(), first.collective());
    for (const std::size_t member : members) {
      const SequenceCursor& other = cursors_[member];
      if (canonical_digest(other.plan(), other.collective()) == digest) continue;
      throw CollectiveMismatch(
          str("rank ", first.rank(), " is at ", first.text(), ", and rank ", other.rank(), " at ",
              other.text(), "; ranks run the plans that share a group in the same order"),
          {.culprits = {first.rank(), other.rank()},
           .operation = first.operation(),
           .group = canonical_name(first.group()),
           .rank = other.rank(),
           .step = other.step()});
    }
  }

  // From a rank that waits to one that it waits for, until one comes again or has nothing more to do.
  [[noreturn]] void fail() const {
    const auto waits = [](const SequenceCursor& cursor) { return !cursor.is_done(); };
    std::size_t rank = idx(std::find_if(cursors_.begin(), cursors_.end(), waits) - cursors_.begin());
    std::vector<std::size_t> path;
    while (waits(cursors_[rank]) && std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      rank = awaited_by(rank);
    }
    if (waits(cursors_[rank])) path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const SequenceCursor& cursor = cursors_[path[i]];
      const std::size_t next = i + 1 < path.size() ? path[i + 1] : rank;
      parts.push_back(str("rank ", cursor.rank(), " waits in ", cursor.text(), " for rank ",
                          cursors_[next].rank(),
                          waits(cursors_[next]) ? "" : ", which has nothing more to do"));
    }
    const SequenceCursor& first = cursors_[path.front()];
    throw Deadlock(str("ranks that run one plan after the other wait for ever: ", join(parts, "; "),
                       "; ranks that share groups run the plans of all of them in one order"),
                   {.operation = first.operation(),
                    .group = canonical_name(first.group()),
                    .rank = first.rank(),
                    .step = first.step()});
  }

  // A member of the rank's group that is not there.
  std::size_t awaited_by(std::size_t rank) const {
    const Group& group = cursors_[rank].group();
    const std::string name = canonical_name(group);
    const auto is_away = [&](Rank member) {
      const auto place = place_of_.find(member);
      if (place == place_of_.end())
        throw Deadlock(str("rank ", cursors_[rank].rank(), " waits in ", cursors_[rank].text(), " for rank ",
                           member, ", which has no plans; give those of all ranks"));
      const SequenceCursor& other = cursors_[place->second];
      return other.is_done() || canonical_name(other.group()) != name;
    };
    return place_of_.at(*std::find_if(group.ranks.begin(), group.ranks.end(), is_away));
  }

  std::vector<SequenceCursor> cursors_;
  std::map<Rank, std::size_t> place_of_;
  std::map<std::string, std::vector<std::size_t>> waiting_;  // by group
  std::vector<std::vector<std::size_t>> complete_;           // groups all of whose members have come
};

}  // namespace

void check_sequences(std::span<const PlanSequence> ranks) { Meetings(ranks).check(); }

}  // namespace cp
