#include "runtime/rendezvous/compare_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rendezvous/test_job.h"
#include "tests/support/hand_plans.h"

namespace cp {
namespace {

using runtime::PlanDigests;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ComparePlans, EqualPlansOfMembersPass) {
  const PlanDigests both{{1, 1}, {{"cp[0,1]", {2, 2}}, {"dp[0,2]", {3, 3}}}};
  const PlanDigests one{{1, 1}, {{"cp[0,1]", {2, 2}}}}, other{{1, 1}, {{"dp[0,2]", {3, 3}}}};
  EXPECT_EQ(runtime::plan_difference({{0, both}, {1, one}, {2, other}}), "");
}

TEST(ComparePlans, NamesWhoDiffersInWhat) {
  const PlanDigests right{{1, 1}, {{"cp[0,1,2]", {2, 2}}}};
  std::map<Rank, PlanDigests> ranks{{0, right}, {1, right}, {2, right}};
  ranks[1].inputs.low = 9;
  EXPECT_EQ(runtime::plan_difference(ranks),
            "inputs: ranks 0, 2 have 00000000000000010000000000000001, rank 1 has "
            "00000000000000010000000000000009");
  ranks[1] = right;
  ranks[2].groups[0].collectives = {3, 2};
  EXPECT_EQ(runtime::plan_difference(ranks),
            "collectives of group cp[0,1,2]: ranks 0, 1 have 00000000000000020000000000000002, rank 2 has "
            "00000000000000030000000000000002");
  ranks[2].groups.clear();
  EXPECT_EQ(runtime::plan_difference(ranks),
            "collectives of group cp[0,1,2]: ranks 0, 1 have 00000000000000020000000000000002, rank 2 has no "
            "such group");
}

TEST(ComparePlans, OverTheControlPlaneAllRanksHearTheSame) {
  const testing::PlanCase plan_case =
      testing::uneven_reduce(3, 7, testing::UnevenReduce::exchange, DType::f32);
  const testing::PlanCase other_case =
      testing::uneven_reduce(3, 8, testing::UnevenReduce::exchange, DType::f32);
  runtime::RendezvousServer server(testing::server_options(3));
  const auto clients = testing::join_all(server, 3);
  const auto compare = [&](const testing::PlanCase& of_rank_1) {
    return testing::run_ranks(3, [&](Rank rank) {
      const auto index = static_cast<std::size_t>(rank);
      compare_plans(*clients[index], rank == 1 ? of_rank_1.plans[index] : plan_case.plans[index]);
    });
  };
  EXPECT_THAT(compare(plan_case), Each(IsEmpty()));
  const auto errors = compare(other_case);
  EXPECT_THAT(errors, Each(HasSubstr("collective_mismatch: the ranks' plans differ (")));
  EXPECT_THAT(errors, Each(HasSubstr("collectives of group")));
  EXPECT_THAT(errors, Each(errors[0]));
}

}  // namespace
}  // namespace cp
