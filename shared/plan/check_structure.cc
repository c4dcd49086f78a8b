#include <algorithm>

#include "shared/base/index.h"
#include "shared/plan/check_internal.h"
#include "shared/plan/step_rules.h"

namespace cp::checker {
namespace {

class Structure {
 public:
  explicit Structure(const Plan& plan) : plan_(plan) { rank_.plan = &plan; }

  RankPlan check() && {
    find_self_in_groups();
    rank_.steps = steps_of(plan_);
    for (const StepRef& ref : rank_.steps) check_step(ref);
    collect_collectives();
    sort_by_group();
    return std::move(rank_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckFailure(str("rank ", plan_.self, ": ", parts...), {.rank = plan_.self});
  }

  void find_self_in_groups() {
    rank_.index_in_group.reserve(plan_.groups.size());
    for (const Group& group : plan_.groups) {
      const auto at = std::find(group.ranks.begin(), group.ranks.end(), plan_.self);
      if (at == group.ranks.end()) {
        fail("is not a member of group ", text(group), "; a plan has only groups that its rank is in");
      }
      rank_.index_in_group.push_back(static_cast<std::int32_t>(at - group.ranks.begin()));
    }
  }

  void check_step(const StepRef& ref) const {
    try {
      validate_step(plan_, *ref.step, ref.count);
    } catch (const InvalidInput& error) {
      throw CheckFailure(str(error.what(), " (step ", ref.id, " of rank ", plan_.self, ")"),
                         {.rank = plan_.self, .step = ref.id});
    }
    for (const Edge& edge : ref.step->after) check_edge(ref, edge);
  }

  // Edges point backward in issue order. Hence issue order is one legal order of the rank's steps, and no
  // rank can wait for itself.
  void check_edge(const StepRef& ref, const Edge& edge) const {
    if (edge.step < 0 || idx(edge.step) >= rank_.steps.size()) {
      fail(step_text(plan_, ref.id), " waits for step ", edge.step, ", but the plan's steps are 0 to ",
           rank_.steps.size() - 1);
    }
    const StepRef& before = rank_.steps[idx(edge.step)];
    const bool same_repeat =
        before.segment == ref.segment && std::holds_alternative<Repeat>(plan_.segments[idx(ref.segment)]);
    if (edge.iterations_back < 0 || (edge.iterations_back > 0 && !same_repeat)) {
      fail(step_text(plan_, ref.id), " waits for ", step_text(plan_, edge.step), " ", edge.iterations_back,
           " iterations back; only steps of one Repeat can, by 0 or more");
    }
    if (edge.iterations_back == 0 && edge.step >= ref.id) {
      fail(step_text(plan_, ref.id), " waits for ", step_text(plan_, edge.step),
           ", which is issued no earlier; an edge names an earlier step, or one of an earlier iteration");
    }
  }

  // Numbers the collectives of each group in the order in which all their iterations are issued: the one that
  // is k-th in the body has the number before + k + iteration * per_iteration. How many collectives a body
  // has is known only at its end, so segments are numbered one by one, each when the next begins.
  void collect_collectives() {
    struct Tally {
      std::int64_t before = 0;      // collectives before this segment, all iterations counted
      std::int32_t in_segment = 0;  // in one iteration
      std::int32_t repeats = 0;
      StreamId stream = -1;
      StepId first = -1;
    };
    std::vector<Tally> tallies(plan_.groups.size());
    std::vector<CollectiveRef>& all = rank_.collectives;
    std::size_t segment_begin = 0;
    const auto close_segment = [&] {
      for (std::size_t i = segment_begin; i < all.size(); ++i) {
        all[i].per_iteration = tallies[idx(all[i].group)].in_segment;
      }
      for (std::size_t i = segment_begin; i < all.size(); ++i) {
        Tally& tally = tallies[idx(all[i].group)];
        tally.before += tally.in_segment * all[i].count;
        tally.repeats += tally.in_segment > 0 && all[i].count > 1 ? 1 : 0;
        tally.in_segment = 0;
      }
      segment_begin = all.size();
    };
    std::int32_t segment = -1;
    for (const StepRef& ref : rank_.steps) {
      if (ref.segment != segment) close_segment();
      segment = ref.segment;
      const Collective* work = std::get_if<Collective>(&ref.step->work);
      if (work == nullptr) continue;
      const GroupId group = group_of(*work);
      Tally& tally = tallies[idx(group)];
      if (tally.stream < 0) tally.stream = ref.step->stream, tally.first = ref.id;
      if (tally.stream != ref.step->stream) {
        fail(step_text(plan_, ref.id), " issues group ", text(plan_.groups[idx(group)]), " on stream ",
             ref.step->stream, ", ", step_text(plan_, tally.first), " on stream ", tally.stream,
             "; a group has one stream: make a second group for the other");
      }
      all.push_back({work, ref.id, group, ref.count, ref.count > 1 ? tally.repeats : -1,
                     tally.before + tally.in_segment++, 1});
    }
    close_segment();
  }

  void sort_by_group() {
    rank_.group_begin.assign(plan_.groups.size() + 1, 0);
    for (const CollectiveRef& ref : rank_.collectives) ++rank_.group_begin[idx(ref.group) + 1];
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) rank_.group_begin[g + 1] += rank_.group_begin[g];
    rank_.by_group.resize(rank_.collectives.size());
    for (std::size_t i = rank_.collectives.size(); i-- > 0;) {
      // Filled from each group's end, so that group_begin is right again afterwards.
      std::int32_t& end = rank_.group_begin[idx(rank_.collectives[i].group) + 1];
      rank_.by_group[idx(--end)] = static_cast<std::int32_t>(i);
    }
    for (std::size_t g = 0; g + 1 < rank_.group_begin.size(); ++g)
      rank_.group_begin[g] = rank_.group_begin[g + 1];
    rank_.group_begin.back() = static_cast<std::int32_t>(rank_.collectives.size());
  }

  const Plan& plan_;
  RankPlan rank_;
};

}  // namespace

RankPlan check_structure(const Plan& plan) { return Structure(plan).check(); }

}  // namespace cp::checker
