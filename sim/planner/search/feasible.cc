#include "sim/planner/search/feasible.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <vector>

#include "shared/base/digest.h"
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
  std::set<Digest> known;
  for (const ParallelLayout& family : families) {
    ParallelLayout without_order = family;
    without_order.order = {};
    Hasher hasher;
    if (known.insert(hash(hasher, without_order).digest()).second) kept.push_back(family);
  }
  return kept;
}

class Feasibility {
 public:
  Feasibility(const PlanQuestion& question, const FeasibleOptions& options)
      : question_(question),
        threads_(options.threads > 0 ? options.threads : num_cores()),
        space_(question),
        rules_(memory_rules(question)),
        usable_(usable_bytes(question)),
        memories_(question, rules_),
        timer_(question),
        mixer_plans_(static_cast<std::size_t>(threads_)),
        plans_left_(options.most_plans) {}

  std::optional<ParallelLayout> find() {
    const std::vector<ParallelLayout> families = of_one_order(space_.families());
    std::vector<Candidate> leanest;      // of their families
    std::vector<ParallelLayout> others;  // of which another member may fit
    // The leanest of all families so far mostly is the answer: it is tried before more are looked at.
    for (std::size_t begin = 0; begin < families.size(); begin += kFamiliesAtOnce) {
      const std::size_t count = std::min(kFamiliesAtOnce, families.size() - begin);
      std::vector<Family> looked_at(count);
      parallel_for(count, threads_,
                   [&](std::size_t i, std::size_t) { looked_at[i] = look_at(families[begin + i]); });
      for (std::size_t i = 0; i < count; ++i) {
        const std::vector<Candidate>& may_fit = looked_at[i].may_fit;
        leanest.insert(leanest.end(), may_fit.begin(), may_fit.end());
        if (looked_at[i].others_may_fit) others.push_back(families[begin + i]);
      }
      std::stable_sort(leanest.begin(), leanest.end(), needs_less);
      if (auto found = first_that_fits(leanest, 1)) return found;
    }
    if (auto found = first_that_fits(leanest)) return found;
    for (std::size_t begin = 0; begin < others.size() && plans_left_ > 0; begin += kAtOnce) {
      const std::size_t count = std::min(kAtOnce, others.size() - begin);
      std::vector<std::vector<Candidate>> members(count);
      parallel_for(count, threads_,
                   [&](std::size_t i, std::size_t) { members[i] = members_that_may_fit(others[begin + i]); });
      for (std::vector<Candidate>& of_family : members) {
        std::stable_sort(of_family.begin(), of_family.end(), needs_less);
        if (auto found = first_that_fits(of_family)) return found;
      }
    }
    return std::nullopt;
  }

 private:
  // Chosen: enough for all threads to be busy, and few to be in vain where the first one fits.
  static constexpr std::size_t kAtOnce = 32, kFamiliesAtOnce = 2048;

  struct Candidate {
    std::int64_t least_bytes = 0;
    ParallelLayout layout;
  };
  struct Family {
    std::vector<Candidate> may_fit;  // the leanest member, with keys of heads and of latent rows
    bool others_may_fit = false;
  };

  static bool needs_less(const Candidate& a, const Candidate& b) { return a.least_bytes < b.least_bytes; }

  bool fits(const Memory& memory) const { return counted_bytes(memory) <= usable_; }

  // The layout, and with recurrences the same by scans that need less.
  std::vector<ParallelLayout> with_scans(const ParallelLayout& layout) const {
    std::vector<ParallelLayout> all{layout};
    for (const StateScan scan : lean_scans(question_, layout)) {
      all.push_back(layout);
      all.back().scan = scan;
    }
    return all;
  }

  void add_if_it_may_fit(const LeastMemories::Lease& memories, const ParallelLayout& layout,
                         std::vector<Candidate>& candidates) const {
    for (const ParallelLayout& one : with_scans(layout)) {
      const Memory least = memories.of(one);
      if (fits(least)) candidates.push_back({counted_bytes(least), one});
    }
  }

  Family look_at(const ParallelLayout& family) {
    Family of;
    const ParallelLayout leanest = space_.leanest_member(family);
    if (refuse(question_.model, question_.workload, leanest)) return of;
    const LeastMemories::Lease memories = memories_.lease();
    add_if_it_may_fit(memories, leanest, of.may_fit);
    const auto rows = with_rows(space_, timer_, leanest);
    if (rows) add_if_it_may_fit(memories, *rows, of.may_fit);
    for (const ParallelLayout& one : with_scans(rows.value_or(leanest))) {
      // Of another strategy these may be less.
      Memory least = memories.of(one);
      least.attention = least.communicators = least.slack = 0;
      of.others_may_fit = of.others_may_fit || fits(least);
    }
    return of;
  }

  std::vector<Candidate> members_that_may_fit(const ParallelLayout& family) {
    std::vector<Candidate> candidates;
    const ParallelLayout leanest = space_.leanest_member(family);  // has been tried
    const LeastMemories::Lease memories = memories_.lease();
    for (const ParallelLayout& layout : space_.members(family)) {
      if (refuse(question_.model, question_.workload, layout)) continue;
      for (const ParallelLayout& choice : space_.overlaps(layout)) {
        if (choice != leanest) add_if_it_may_fit(memories, choice, candidates);
      }
      const auto rows = with_rows(space_, timer_, layout);
      if (rows) add_if_it_may_fit(memories, *rows, candidates);
    }
    return candidates;
  }

  // By their plans, in this order, `most` of them at most. One alone is tried before many at once, since it
  // mostly is the answer. Those that were tried are taken out.
  std::optional<ParallelLayout> first_that_fits(std::vector<Candidate>& candidates,
                                                std::size_t most = std::numeric_limits<std::size_t>::max()) {
    std::size_t tried = 0;
    std::optional<ParallelLayout> found;
    while (!found && tried < std::min(most, candidates.size()) && plans_left_ > 0) {
      const std::size_t count =
          std::min({tried == 0 ? 1 : kAtOnce, std::min(most, candidates.size()) - tried,
                    static_cast<std::size_t>(std::min<std::int64_t>(plans_left_, kAtOnce))});
      plans_left_ -= static_cast<std::int64_t>(count);
      std::vector<char> has_room(count);
      parallel_for(count, threads_, [&](std::size_t i, std::size_t thread) {
        const StepRequest request{question_.model, question_.workload, candidates[tried + i].layout};
        has_room[i] = fits(memory_of(request, rules_, &mixer_plans_[thread])) ? 1 : 0;
      });
      const auto first = std::find(has_room.begin(), has_room.end(), 1);
      if (first != has_room.end())
        found = candidates[tried + static_cast<std::size_t>(first - has_room.begin())].layout;
      tried += count;
    }
    candidates.erase(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(tried));
    return found;
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

std::optional<ParallelLayout> feasible(const PlanQuestion& question, const FeasibleOptions& options) {
  return Feasibility(question, options).find();
}

}  // namespace cp::sim
