// What the tests of the checker share: the two verdicts, and two sets of plans that keep every rule.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "tests/plan/plan_writer.h"

namespace cp::testing {

// The exact type of the error, and words of its message.
template <class Expected>
void expect_error(const std::vector<Plan>& plans, const std::vector<std::string>& words,
                  const CheckLimits& limits = {}) {
  try {
    check(plans, limits);
  } catch (const Error& error) {
    EXPECT_NE(dynamic_cast<const Expected*>(&error), nullptr) << name(error.kind()) << ": " << error.what();
    for (const std::string& each : words) EXPECT_THAT(error.what(), ::testing::HasSubstr(each));
    return;
  }
  ADD_FAILURE() << "check() found nothing; expected: " << join(words, " ... ");
}

inline void expect_clean(const std::vector<Plan>& plans, const CheckLimits& limits = {}) {
  EXPECT_NO_THROW(check(plans, limits));
}

inline std::vector<Plan> write_plans(Rank ranks, const std::function<void(Rank, PlanWriter&)>& write,
                                     const std::vector<std::string>& streams = {"main"}) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < ranks; ++rank) {
    PlanWriter plan(rank, streams);
    write(rank, plan);
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

// x -> copy -> t -> all_gather -> y, on 3 ranks.
inline std::vector<Plan> gather_plans() {
  return write_plans(3, [](Rank, PlanWriter& plan) {
    const GroupId group = plan.group("tp", {0, 1, 2});
    const BufferId x = plan.input("x", 4), t = plan.temporary("t", 4), y = plan.output("y", 12);
    plan.add(0, Copy{flat_view(x, 0, 4), flat_view(t, 0, 4)}, {}, "pack");
    plan.add(0, AllGather{group, flat_view(t, 0, 4), flat_view(y, 0, 12)}, {}, "gather");
  });
}

// Every rank sends 2 elements, then 1, to the next and receives them from the previous one.
inline std::vector<Plan> exchange_plans() {
  std::vector<Plan> plans = write_plans(3, [](Rank rank, PlanWriter& plan) {
    const GroupId group = plan.group("cp", {0, 1, 2});
    const BufferId x = plan.input("x", 3), y = plan.output("y", 3);
    const std::int32_t next = (rank + 1) % 3, previous = (rank + 2) % 3;
    plan.add(0,
             Exchange{group,
                      {{next, flat_view(x, 0, 2)}, {next, flat_view(x, 2, 1)}},
                      {{previous, flat_view(y, 0, 2)}, {previous, flat_view(y, 2, 1)}},
                      {}},
             {}, "shift");
  });
  fill_counts(plans, 0);
  return plans;
}

}  // namespace cp::testing
