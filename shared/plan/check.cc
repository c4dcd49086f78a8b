#include "shared/plan/check.h"

#include <algorithm>

#include "shared/plan/canonical.h"
#include "shared/plan/check_internal.h"

namespace cp {
namespace checker {

std::string text(const Group& group) { return canonical_name(group); }

std::string collective_text(const RankPlan& rank, const CollectiveRef& ref, std::int64_t iteration) {
  const Group& group = rank.plan->groups[static_cast<std::size_t>(ref.group)];
  return str(operation_name(*ref.work), " #", ref.sequence + iteration * ref.per_iteration, " on ",
             text(group));
}

namespace {

// Plans of one job: a rank each, all built from the same inputs.
void check_set(std::span<const Plan> plans) {
  std::vector<Rank> ranks;
  ranks.reserve(plans.size());
  for (const Plan& plan : plans) {
    ranks.push_back(plan.self);
    if (plan.inputs != plans.front().inputs) {
      throw CheckFailure(str("rank ", plan.self, "'s plan was built from inputs ", to_string(plan.inputs),
                             ", rank ", plans.front().self, "'s from ", to_string(plans.front().inputs),
                             "; build all plans from the same arguments"));
    }
  }
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) throw CheckFailure(str("rank ", *twice, " has two plans; give each rank one"));
}

}  // namespace
}  // namespace checker

void check(std::span<const Plan> plans, const CheckLimits& limits) {
  checker::check_set(plans);
  checker::World world;
  world.ranks.reserve(plans.size());
  for (const Plan& plan : plans) {
    world.ranks.push_back(checker::check_structure(plan));
    checker::check_memory(world.ranks.back(), limits);
  }
  checker::find_communicators(world);
  checker::check_matching(world);
  checker::check_symmetric(world);
  checker::check_progress(world);
  checker::check_order_and_contents(world);
}

}  // namespace cp
