#include "sim/planner/search/feasible.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shared/transformer/memory_reading.h"
#include "sim/base/parallel_for.h"
#include "sim/planner/search/attention_times.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/least_memories.h"
#include "sim/planner/search/overlap.h"

namespace cp::sim {
namespace {

// Where ranks are changes what they wait for, and not what they keep: of families that differ in the order of
// their axes alone, the first one stands for all.
std::vector<ParallelLayout> of_one_order(const std::vector<ParallelLayout>& families) {
  std::vector<ParallelLayout> kept;
  std::set<std::string> known;
  for (const ParallelLayout& family : families) {
    ParallelLayout without_order = family;
    without_order.order = {};
    if (known.insert(to_string(without_order)).second) kept.push_back(family);
  }
  return kept;
}

class Feasibility {
 public:
  Feasibility(const PlanQuestion& question, std::int64_t most_plans)
      : question_(question),
        threads_(num_cores()),
        space_(question),
        rules_(memory_rules(question)),
        usable_(usable_bytes(question)),
        memories_(question, rules_),
        timer_(question),
        mixer_plans_(static_cast<std::size_t>(threads_)),
        plans_left_(most_plans) {}

  std::optional<ParallelLayout> find() {
    const std::vector<ParallelLayout> families = of_one_order(space_.families());
    std::vector<Family> looked_at(families.size());
    parallel_for(families.size(), threads_,
                 [&](std::size_t i, std::size_t) { looked_at[i] = look_at(families[i]); });
    std::vector<Candidate> leanest;
    std::vector<ParallelLayout> others;  // of which another member than the leanest may fit
    for (std::size_t i = 0; i < families.size(); ++i) {
      for (Candidate& candidate : looked_at[i].may_fit) leanest.push_back(std::move(candidate));
      if (looked_at[i].others_may_fit) others.push_back(families[i]);
    }
    if (auto found = first_that_fits(std::move(leanest))) return found;
    for (std::size_t begin = 0; begin < others.size() && plans_left_ > 0; begin += kAtOnce) {
      const std::size_t count = std::min(kAtOnce, others.size() - begin);
      std::vector<std::vector<Candidate>> members(count);
      parallel_for(count, threads_,
                   [&](std::size_t i, std::size_t) { members[i] = members_that_may_fit(others[begin + i]); });
      for (std::vector<Candidate>& of_family : members) {
        if (auto found = first_that_fits(std::move(of_family))) return found;
      }
    }
    return std::nullopt;
  }

 private:
  // Chosen: enough for all threads to be busy, and few to be in vain where the first one fits.
  static constexpr std::size_t kAtOnce = 32;

  struct Candidate {
    std::int64_t least_bytes = 0;
    ParallelLayout layout;
  };
  struct Family {
    std::vector<Candidate> may_fit;  // the leanest member, with keys of heads and of latent rows
    bool others_may_fit = false;
  };

  bool fits(const Memory& memory) const { return counted_bytes(memory) <= usable_; }

  void add_if_it_may_fit(const ParallelLayout& layout, std::vector<Candidate>& candidates) {
    const Memory least = memories_.of(layout);
    if (fits(least)) candidates.push_back({counted_bytes(least), layout});
  }

  Family look_at(const ParallelLayout& family) {
    Family of;
    const ParallelLayout leanest = space_.leanest_member(family);
    if (refuse(question_.model, question_.workload, leanest)) return of;
    add_if_it_may_fit(leanest, of.may_fit);
    const auto rows = with_rows(space_, timer_, leanest);
    if (rows) add_if_it_may_fit(*rows, of.may_fit);
    // Of another strategy these may be less.
    Memory least = memories_.of(rows.value_or(leanest));
    least.attention = least.communicators = least.slack = 0;
    of.others_may_fit = fits(least);
    return of;
  }

  std::vector<Candidate> members_that_may_fit(const ParallelLayout& family) {
    std::vector<Candidate> candidates;
    const ParallelLayout leanest = space_.leanest_member(family);  // has been tried
    for (const ParallelLayout& layout : space_.members(family)) {
      if (refuse(question_.model, question_.workload, layout)) continue;
      for (const ParallelLayout& choice : space_.overlaps(layout)) {
        if (choice != leanest) add_if_it_may_fit(choice, candidates);
      }
      const auto rows = with_rows(space_, timer_, layout);
      if (rows) add_if_it_may_fit(*rows, candidates);
    }
    return candidates;
  }

  // By their plans, those that need least first. One alone is tried before many at once, since it mostly is
  // the answer.
  std::optional<ParallelLayout> first_that_fits(std::vector<Candidate> candidates) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.least_bytes < b.least_bytes; });
    for (std::size_t begin = 0, count = 1; begin < candidates.size() && plans_left_ > 0; begin += count) {
      count = std::min(begin == 0 ? 1 : kAtOnce, candidates.size() - begin);
      plans_left_ -= static_cast<std::int64_t>(count);
      std::vector<char> has_room(count);
      parallel_for(count, threads_, [&](std::size_t i, std::size_t thread) {
        const StepRequest request{question_.model, question_.workload, candidates[begin + i].layout};
        has_room[i] = fits(memory_of(request, rules_, &mixer_plans_[thread])) ? 1 : 0;
      });
      const auto first = std::find(has_room.begin(), has_room.end(), 1);
      if (first != has_room.end())
        return candidates[begin + static_cast<std::size_t>(first - has_room.begin())].layout;
    }
    return std::nullopt;
  }

  const PlanQuestion& question_;
  const int threads_;
  const LayoutSpace space_;
  const MemoryRules rules_;
  const std::int64_t usable_;
  LeastMemories memories_;
  AttentionTimer timer_;
  std::vector<MixerPlanCache> mixer_plans_;  // of each thread
  std::int64_t plans_left_;
};

}  // namespace

std::optional<ParallelLayout> feasible(const PlanQuestion& question, std::int64_t most_plans) {
  return Feasibility(question, most_plans).find();
}

}  // namespace cp::sim
