// Programs that end with one library and hang with another, and what the report says of them.
#include "sim/proof/progress/progress.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/progress/progress_plans.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Ends ends_under(const ProgressRules& rules, const std::vector<Plan>& plans) {
  return explore_progress(plans, rules).ends;
}

ProgressRules unordered_rules() { return {.name = "one at a time", .launch = Launch::one_at_a_time}; }

std::vector<Rank> ranks_of(const std::vector<ProgressStep>& steps) {
  std::vector<Rank> ranks;
  for (const ProgressStep& step : steps) ranks.push_back(step.rank);
  return ranks;
}

// Rank 0 and 1 send to each other, then receive.
std::vector<Plan> sends_first(std::int64_t numel) {
  return programs(2, [&](HandProgram& p, Rank rank) {
    const GroupId pair = p.group("pair", {0, 1});
    p.send(pair, 1 - rank, numel);
    p.recv(pair, 1 - rank, numel);
  });
}

TEST(Progress, LoneSendsBothWaysEndOnlyWithBuffers) {
  const auto plans = sends_first(1024);
  EXPECT_EQ(ends_under(nccl_rules(0), plans), Ends::never);
  EXPECT_EQ(ends_under(nccl_rules(4096), plans), Ends::in_all_orders);
  EXPECT_EQ(ends_under(nccl_rules(4095), plans), Ends::never);  // the send is larger by one byte
  EXPECT_EQ(ends_under(nccl_rules(std::nullopt), plans), Ends::in_all_orders);
  EXPECT_EQ(ends_under(gloo_rules(), plans), Ends::never);
  EXPECT_EQ(ends_under(fabric_rules(), plans),
            Ends::in_all_orders);  // both come to each: what they do there is another matter

  const ProgressReport report = explore_progress(plans, nccl_rules(0));
  EXPECT_TRUE(report.exhaustive);
  EXPECT_TRUE(report.is_cycle);
  ASSERT_EQ(report.waits.size(), 2u);
  EXPECT_EQ(report.waits[0].at, (ProgressStep{0, 0, 0, "exchange", "main", {"pair", {0, 1}}, 0}));
  EXPECT_EQ(report.waits[0].awaited_rank, 1);
  EXPECT_EQ(report.waits[0].awaited->step, 1);
  EXPECT_EQ(report.waits[0].behind, "on its stream");
  EXPECT_THAT(
      to_string(report),
      AllOf(HasSubstr("nccl, buffers of 0 bytes: never ends (the rules leave no choice"),
            HasSubstr(
                "the cycle:\n    rank 0 step 0 exchange #0 on pair[0,1] (stream main) waits for rank 1: its "
                "step 1 exchange #1 on pair[0,1] comes later on its stream\n"
                "    rank 1 step 0 exchange #0 on pair[0,1] (stream main) waits for rank 0"),
            HasSubstr("ranks that do not end: 0,1"),
            HasSubstr("no order could have ended from the start on")));
}

TEST(Progress, TheTextSaysUnderWhichRulesPlansEnd) {
  const std::vector<ProgressRules> rules = {nccl_rules(0), nccl_rules(std::nullopt)};
  EXPECT_THAT(to_string(explore_progress(sends_first(1), rules)),
              HasSubstr("the plans end under: nccl, buffers without a bound\n"
                        "and hang, or may hang, under: nccl, buffers of 0 bytes\n"));
  EXPECT_THAT(to_string(explore_progress(programs(1, [](HandProgram& p, Rank) { p.fill(); }), rules)),
              Not(HasSubstr("depends on the library")));
}

TEST(Progress, BuffersHoldAllThatIsNotYetReceived) {
  // Two sends of 1024 bytes each wait for one receive at a time.
  const auto plans = programs(2, [&](HandProgram& p, Rank rank) {
    const GroupId pair = p.group("pair", {0, 1});
    for (int i = 0; i < 2; ++i) p.send(pair, 1 - rank, 256);
    for (int i = 0; i < 2; ++i) p.recv(pair, 1 - rank, 256);
  });
  EXPECT_EQ(ends_under(nccl_rules(2047), plans), Ends::never);
  EXPECT_EQ(ends_under(nccl_rules(2048), plans), Ends::in_all_orders);
  // It stands at the second send.
  EXPECT_EQ(explore_progress(plans, nccl_rules(2047)).stuck.front().step, 1);
}

TEST(Progress, BothReceiveFirst) {
  const auto plans = programs(2, [&](HandProgram& p, Rank rank) {
    const GroupId pair = p.group("pair", {0, 1});
    p.recv(pair, 1 - rank);
    p.send(pair, 1 - rank);
  });
  for (const ProgressRules& rules : {nccl_rules(0), nccl_rules(std::nullopt), gloo_rules()}) {
    EXPECT_EQ(ends_under(rules, plans), Ends::never) << rules.name;
  }
}

TEST(Progress, OneExchangeForBothEnds) {
  const auto plans = programs(2, [&](HandProgram& p, Rank rank) {
    p.exchange(p.group("pair", {0, 1}), {{1 - rank, 1000}}, {{1 - rank, 1000}});
  });
  for (const ProgressReport& report : explore_progress(plans, all_rules())) {
    EXPECT_EQ(report.ends, Ends::in_all_orders) << to_string(report);
    EXPECT_THAT(report.waits, IsEmpty());
    EXPECT_THAT(report.mismatch, IsEmpty());
  }
}

// Every rank sends to the next and then receives: a ring without a first one.
TEST(Progress, ARingOfThreeThatSendsBeforeItReceives) {
  const auto ring = [](bool rank_0_receives_first) {
    return programs(3, [&](HandProgram& p, Rank rank) {
      const GroupId all = p.group("all", {0, 1, 2});
      const std::int32_t next = (rank + 1) % 3, before = (rank + 2) % 3;
      if (rank == 0 && rank_0_receives_first) p.recv(all, before, 8);
      p.send(all, next, 8);
      if (rank != 0 || !rank_0_receives_first) p.recv(all, before, 8);
    });
  };
  const ProgressReport report = explore_progress(ring(false), nccl_rules(0));
  EXPECT_EQ(report.ends, Ends::never);
  EXPECT_TRUE(report.is_cycle);
  EXPECT_EQ(report.waits.size(), 3u);
  EXPECT_EQ(ends_under(nccl_rules(32), ring(false)), Ends::in_all_orders);
  EXPECT_EQ(ends_under(nccl_rules(0), ring(true)), Ends::in_all_orders);
  EXPECT_EQ(ends_under(gloo_rules(), ring(true)), Ends::in_all_orders);
}

// Two groups on streams of their own, which one rank issues the other way round.
std::vector<Plan> crossed_groups(bool crossed) {
  return programs(2,
                  [&](HandProgram& p, Rank rank) {
                    const GroupId a = p.group("a", {0, 1}), b = p.group("b", {0, 1});
                    if (rank == 0 || !crossed) {
                      p.all_reduce(a, 0);
                      p.all_reduce(b, 1);
                    } else {
                      p.all_reduce(b, 1);
                      p.all_reduce(a, 0);
                    }
                  },
                  {"for a", "for b"});
}

TEST(Progress, GroupsInCrossedOrderEndWithGlooAndHangWithNccl) {
  EXPECT_EQ(ends_under(gloo_rules(), crossed_groups(true)), Ends::in_all_orders);
  const ProgressReport report = explore_progress(crossed_groups(true), nccl_rules());
  EXPECT_EQ(report.ends, Ends::never);
  EXPECT_THAT(
      to_string(report),
      AllOf(
          HasSubstr(
              "rank 0 step 0 all_reduce #0 on a[0,1] (stream for a) waits for rank 1: its step 1 all_reduce "
              "#0 on a[0,1] comes later in the order of launches"),
          HasSubstr("rank 1 step 0 all_reduce #0 on b[0,1] (stream for b) waits for rank 0")));
  ProgressRules overlapping = nccl_rules();
  overlapping.launch = Launch::begin_in_order;
  EXPECT_EQ(ends_under(overlapping, crossed_groups(true)), Ends::in_all_orders);
  EXPECT_EQ(ends_under(nccl_rules(), crossed_groups(false)), Ends::in_all_orders);
}

TEST(Progress, WithoutAnOrderOfLaunchesGroupsEndInSomeOrders) {
  const ProgressReport report = explore_progress(crossed_groups(false), unordered_rules());
  EXPECT_EQ(report.ends, Ends::in_some_orders);
  EXPECT_TRUE(report.exhaustive);
  // Rank 0 begins one of them, and all may still go well; it is lost when rank 1 begins the other one.
  ASSERT_TRUE(report.lost_at.has_value());
  EXPECT_EQ(report.lost_at->rank, 1);
  EXPECT_TRUE(report.is_cycle);
  EXPECT_THAT(to_string(report),
              AllOf(HasSubstr("ends in some orders (all orders, "), HasSubstr("after rank 1 step "),
                    HasSubstr(" had begun, no order could have ended")));
}

// Rank 0 sends and receives in one group of calls, and rank 1 never sends. Rank 1 gets its message where
// transfers go alone, and not where a group of calls waits for all its peers.
TEST(Progress, AReceiveWithoutAPartnerHoldsUpTheSendBesideIt) {
  const auto plans = programs(2, [&](HandProgram& p, Rank rank) {
    const GroupId pair = p.group("pair", {0, 1});
    if (rank == 0) p.exchange(pair, {{1}}, {{1}});
    if (rank == 1) p.recv(pair, 0);
  });
  const ProgressReport gloo = explore_progress(plans, gloo_rules());
  EXPECT_EQ(gloo.ends, Ends::never);
  EXPECT_THAT(ranks_of(gloo.stuck), ElementsAre(0));
  EXPECT_FALSE(gloo.is_cycle);
  EXPECT_THAT(to_string(gloo),
              AllOf(HasSubstr("the chain:"), HasSubstr("waits for rank 1, which never issues the other end"),
                    HasSubstr("ranks that do not end: 0\n")));
  for (const auto& buffer : {std::optional<std::int64_t>(0), std::optional<std::int64_t>()}) {
    EXPECT_THAT(ranks_of(explore_progress(plans, nccl_rules(buffer)).stuck), ElementsAre(0, 1));
  }
}

// The same as a ring: each transfer's ends come in turn, but one group of calls waits for the end of the
// chain that it begins.
TEST(Progress, AGroupOfCallsThatWaitsForWhatItBegins) {
  const auto plans = programs(3, [&](HandProgram& p, Rank rank) {
    const GroupId all = p.group("all", {0, 1, 2});
    if (rank == 0) p.exchange(all, {{1}}, {{2}});
    if (rank != 0) {
      p.recv(all, rank - 1);
      p.send(all, (rank + 1) % 3);
    }
  });
  EXPECT_EQ(ends_under(gloo_rules(), plans), Ends::in_all_orders);
  EXPECT_EQ(ends_under(nccl_rules(), plans), Ends::never);
  ProgressRules documented = nccl_rules();
  documented.meeting = Meeting::transfers;
  EXPECT_EQ(ends_under(documented, plans), Ends::in_all_orders);
}

// An exchange that is cut into launches: rank 0 has one transfer fewer than the others, so its cuts fall
// elsewhere.
TEST(Progress, AnExchangeCutIntoLaunchesHangsWhereItsCutsDiffer) {
  const auto plans = programs(4, [&](HandProgram& p, Rank rank) {
    const GroupId all = p.group("all", {0, 1, 2, 3});
    std::vector<HandProgram::To> sends, recvs;
    for (std::int32_t distance = 1; distance < 4; ++distance) {
      // Rank 0 sends nothing to rank 1.
      if (rank != 0 || distance != 1) sends.push_back({(rank + distance) % 4});
      if (rank != 1 || distance != 1) recvs.push_back({(rank + 4 - distance) % 4});
    }
    p.exchange(all, sends, recvs);
  });
  for (const ProgressReport& report : explore_progress(plans, all_rules())) {
    EXPECT_EQ(report.ends, Ends::in_all_orders) << to_string(report);
  }
  ProgressRules cut = nccl_rules();
  cut.transfers_per_launch = 3;
  const ProgressReport report = explore_progress(plans, cut);
  EXPECT_EQ(report.ends, Ends::never) << to_string(report);
  cut.transfers_per_launch = 6;
  EXPECT_EQ(ends_under(cut, plans), Ends::in_all_orders);
}

TEST(Progress, AMemberThatNeverComes) {
  const auto plans = programs(3, [&](HandProgram& p, Rank rank) {
    const GroupId all = p.group("all", {0, 1, 2});
    if (rank != 1) p.all_reduce(all);
    p.fill();
  });
  for (const ProgressReport& report : explore_progress(plans, all_rules())) {
    EXPECT_EQ(report.ends, Ends::never);
    EXPECT_FALSE(report.is_cycle);
    ASSERT_EQ(report.waits.size(), 1u);
    EXPECT_EQ(report.waits[0].awaited_rank, 1);
    EXPECT_EQ(report.waits[0].awaited, std::nullopt);
    EXPECT_THAT(ranks_of(report.stuck), ElementsAre(0, 2));
  }
  // Nor does a rank without a plan.
  const std::vector<Plan> two(plans.begin(), plans.begin() + 1);
  EXPECT_EQ(ends_under(gloo_rules(), two), Ends::never);
}

TEST(Progress, EdgesAreWaitedFor) {
  // Rank 0 sends on one stream after it has received on the other, and rank 1 the other way round.
  const auto plans = [](bool crossed) {
    return programs(2,
                    [&](HandProgram& p, Rank rank) {
                      const GroupId there = p.group("there", {0, 1}), back = p.group("back", {0, 1});
                      const auto go = [&](std::vector<Edge> after) {
                        return rank == 0 ? p.exchange(there, {{1}}, {}, 0, std::move(after))
                                         : p.exchange(there, {}, {{0}}, 0, std::move(after));
                      };
                      const auto come = [&](std::vector<Edge> after) {
                        return rank == 1 ? p.exchange(back, {{0}}, {}, 1, std::move(after))
                                         : p.exchange(back, {}, {{1}}, 1, std::move(after));
                      };
                      if (rank == 0 || !crossed) {
                        const StepId first = go({});
                        come({{first, 0}});
                      } else {
                        const StepId first = come({});
                        go({{first, 0}});
                      }
                    },
                    {"there", "back"});
  };
  EXPECT_EQ(ends_under(gloo_rules(), plans(false)), Ends::in_all_orders);
  const ProgressReport report = explore_progress(plans(true), gloo_rules());
  EXPECT_EQ(report.ends, Ends::never);
  EXPECT_EQ(report.waits.at(0).behind, "by an edge");
}

TEST(Progress, RepeatsAreCountedOut) {
  const auto plans = [](std::int64_t rank_1_iterations) {
    return programs(2, [&](HandProgram& p, Rank rank) {
      const GroupId pair = p.group("pair", {0, 1});
      p.writer().begin_repeat(rank == 0 ? 5 : rank_1_iterations);
      p.all_reduce(pair);
      p.writer().end_repeat();
    });
  };
  EXPECT_EQ(ends_under(nccl_rules(), plans(5)), Ends::in_all_orders);
  const ProgressReport report = explore_progress(plans(4), nccl_rules());
  EXPECT_EQ(report.ends, Ends::never);
  EXPECT_EQ(report.stuck.at(0).iteration, 4);
  EXPECT_THAT(to_string(report), HasSubstr("step 0 all_reduce #4 on pair[0,1] (iteration 4)"));
}

TEST(Progress, WhatMeetsAndDiffersIsSaid) {
  const auto operations = programs(2, [&](HandProgram& p, Rank rank) {
    const GroupId pair = p.group("pair", {0, 1});
    rank == 0 ? p.all_reduce(pair) : p.broadcast(pair);
  });
  EXPECT_THAT(to_string(explore_progress(operations, nccl_rules())),
              HasSubstr("what meets differs: rank 0 step 0 all_reduce #0 on pair[0,1] (stream main) meets "
                        "rank 1 step 0 broadcast"));
  const auto sizes = programs(2, [&](HandProgram& p, Rank rank) {
    const GroupId pair = p.group("pair", {0, 1});
    rank == 0 ? p.send(pair, 1, 4) : p.recv(pair, 0, 3);
  });
  EXPECT_THAT(explore_progress(sizes, nccl_rules()).mismatch,
              AllOf(HasSubstr("sends 16 bytes"), HasSubstr("expects 12")));
}

// ---- many orders, and limits ----

// `pairs` neighbours of a ring share a group each, on a stream of their own, twice: each rank chooses between
// two.
std::vector<Plan> unordered_ring(int ranks, int rounds) {
  return programs(ranks,
                  [&](HandProgram& p, Rank rank) {
                    const auto link = [&](Rank a) {
                      return p.group(str("link", a), {a, static_cast<Rank>((a + 1) % ranks)});
                    };
                    const GroupId left = link((rank + ranks - 1) % ranks), right = link(rank);
                    for (int i = 0; i < rounds; ++i) {
                      p.all_reduce(left, 0);
                      p.all_reduce(right, 1);
                    }
                  },
                  {"left", "right"});
}

TEST(Progress, ReducedAndWholeSearchAgree) {
  ProgressLimits whole;
  whole.reduce = false;
  whole.states = 2'000'000;
  for (const auto& plans :
       {sends_first(1), crossed_groups(true), crossed_groups(false), unordered_ring(3, 1)}) {
    for (ProgressRules rules :
         {nccl_rules(0), nccl_rules(std::nullopt), gloo_rules(), fabric_rules(), unordered_rules()}) {
      const ProgressReport reduced = explore_progress(plans, rules),
                           all = explore_progress(plans, rules, whole);
      ASSERT_TRUE(reduced.exhaustive && all.exhaustive);
      EXPECT_EQ(reduced.ends, all.ends) << to_string(reduced) << "\n" << to_string(all);
      EXPECT_LE(reduced.states, all.states);
    }
  }
}

TEST(Progress, BeyondTheLimitOfStatesOrdersAreDrawnAndTheReportSaysSo) {
  ProgressLimits few;
  few.states = 20;
  few.walks = 60;
  const auto plans = unordered_ring(5, 2);
  const ProgressReport report = explore_progress(plans, unordered_rules(), few);
  EXPECT_FALSE(report.exhaustive);
  EXPECT_EQ(report.walks, few.walks);
  EXPECT_EQ(report.ends, Ends::in_some_orders) << to_string(report);
  EXPECT_GT(report.walks_ended, 0);
  EXPECT_TRUE(report.lost_at.has_value());
  EXPECT_THAT(to_string(report),
              AllOf(HasSubstr("a sample: there are more states than 20; of 60 orders drawn "),
                    HasSubstr("no order that was drawn ended")));
  EXPECT_EQ(to_string(report), to_string(explore_progress(plans, unordered_rules(), few)));  // equal seeds
  // All orders of it can still be had.
  EXPECT_EQ(explore_progress(plans, unordered_rules()).ends, Ends::in_some_orders);
}

TEST(Progress, TooManyOperationsAreNotLookedAt) {
  ProgressLimits limits;
  limits.operations = 3;
  const ProgressReport report = explore_progress(sends_first(1), nccl_rules(), limits);
  EXPECT_EQ(report.ends, Ends::unknown);
  EXPECT_THAT(to_string(report), HasSubstr("unknown (more operations than the limit"));
}

TEST(Progress, ThousandRanksTakeOneOrder) {
  const auto plans = programs(1024, [&](HandProgram& p, Rank rank) {
    std::vector<Rank> all;
    for (Rank each = 0; each < 1024; ++each) all.push_back(each);
    const GroupId group = p.group("all", all);
    for (int i = 0; i < 4; ++i) {
      p.exchange(group, {{(rank + 1) % 1024}}, {{(rank + 1023) % 1024}});
      p.all_reduce(group);
    }
  });
  for (const ProgressReport& report : explore_progress(plans, all_rules())) {
    EXPECT_EQ(report.ends, Ends::in_all_orders) << to_string(report);
    EXPECT_EQ(report.states, 1);
  }
}

TEST(Progress, PlansThatNameWhatIsNotThereAreRefused) {
  const auto refusal = [](auto&& add_steps) -> std::string {
    try {
      explore_progress(programs(2, add_steps, {"a", "b"}), gloo_rules());
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal([](HandProgram& p, Rank) { p.all_reduce(3); }),
              HasSubstr("on group 3; the plan has 0"));
  EXPECT_THAT(refusal([](HandProgram& p, Rank) { p.fill(2); }), HasSubstr("on stream 2; the plan has 2"));
  EXPECT_THAT(refusal([](HandProgram& p, Rank) {
                p.fill(0, {{1, 0}});
                p.fill(1);
              }),
              HasSubstr("which is issued later"));
  EXPECT_THAT(refusal([](HandProgram& p, Rank) {
                const GroupId pair = p.group("pair", {0, 1});
                p.all_reduce(pair, 0);
                p.all_reduce(pair, 1);
              }),
              HasSubstr("on streams 0 and 1"));
  EXPECT_THAT(refusal([](HandProgram& p, Rank) {
                p.send(p.group("pair", {0, 1}), 2);
              }),
              HasSubstr("member 2 of a group of 2"));
}

}  // namespace
}  // namespace cp::sim
