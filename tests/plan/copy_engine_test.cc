// Symmetric temporaries, and groups whose data copy engines move.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "tests/plan/check_plans.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;

constexpr Rank kRanks = 3;
const std::vector<Rank> kAll = {0, 1, 2};

Buffer& buffer(Plan& plan, const std::string& name) {
  return *std::find_if(plan.buffers.begin(), plan.buffers.end(),
                       [&](const Buffer& each) { return each.name == name; });
}
Exchange& exchange_of(Plan& plan) {
  for (Segment& segment : plan.segments) {
    if (auto* collective = std::get_if<Collective>(&std::get<Step>(segment).work)) {
      if (auto* exchange = std::get_if<Exchange>(collective)) return *exchange;
    }
  }
  throw InvalidInput("no exchange");
}

// Each rank gathers all blocks of x, and passes its own on to the next. Rank 1 has another temporary besides,
// before the symmetric ones in the plan.
Plan moves(Rank self, const Target& target = host_target()) {
  PlanBuilder b(self, target);
  const StreamId main = b.stream("main");
  const BufferId x = b.input("x", DType::f32, 5), y = b.output("y", DType::f32, 20);
  const BufferId more = self == 1 ? b.temporary("more", DType::f32, 7) : -1;
  const BufferId from = b.symmetric("from", DType::f32, 5), all = b.symmetric("all", DType::f32, 15),
                 slot = b.symmetric("slot", DType::f32, 5);
  const GroupId group = b.group("cp_ce", kAll, true);
  if (more >= 0) b.add(main, Fill{flat_view(more, 0, 7), 1});
  b.add(main, Copy{flat_view(x, 0, 5), flat_view(from, 0, 5)});
  b.add(main, AllGather{group, flat_view(from, 0, 5), flat_view(all, 0, 15)});
  Exchange exchange{group, {}, {}, counts_digest({{0, 1, 5}, {1, 2, 5}, {2, 0, 5}})};
  exchange.sends = {{(self + 1) % kRanks, flat_view(from, 0, 5), flat_view(slot, 0, 5)}};
  exchange.recvs = {{(self + 2) % kRanks, flat_view(slot, 0, 5)}};
  b.add(main, std::move(exchange));
  b.add(main, Copy{flat_view(all, 0, 15), flat_view(y, 0, 15)});
  b.add(main, Copy{flat_view(slot, 0, 5), flat_view(y, 15, 5)});
  return std::move(b).build({});
}

std::vector<Plan> all_moves() {
  std::vector<Plan> plans;
  plans.reserve(kRanks);
  for (Rank rank = 0; rank < kRanks; ++rank) plans.push_back(moves(rank));
  return plans;
}

TEST(CopyEngines, SymmetricTemporariesComeFirstAndAlikeOnAllRanks) {
  for (const Target& target : {host_target(), gpu_target("sm90")}) {
    std::vector<Plan> plans;
    plans.reserve(kRanks);
    for (Rank rank = 0; rank < kRanks; ++rank) plans.push_back(moves(rank, target));
    expect_clean(plans);
    for (Plan& plan : plans) {
      EXPECT_EQ(plan.symmetric_bytes, 4096);
      EXPECT_EQ(buffer(plan, "from").offset_bytes, 0);
      EXPECT_EQ(buffer(plan, "all").offset_bytes, 256);
      EXPECT_EQ(buffer(plan, "slot").offset_bytes, 512);
    }
    EXPECT_EQ(buffer(plans[1], "more").offset_bytes, 4096);
    EXPECT_EQ(plans[1].arena_bytes, 4096 + 28);
    EXPECT_EQ(plans[0].arena_bytes, 4096);
  }
}

TEST(CopyEngines, TheTextAndSplicedPlansHaveThem) {
  const Plan plan = moves(1);
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  EXPECT_THAT(to_text(plan), HasSubstr("group 0 \"cp_ce\" ranks 0,1,2 copy_engine\n"));
  EXPECT_THAT(to_text(plan), HasSubstr("arena 4124 symmetric 4096\n"));
  PlanBuilder b(1, host_target());
  const BufferId x = b.input("x", DType::f32, 5), y = b.output("y", DType::f32, 20);
  b.splice(plan, {{"x", flat_view(x, 0, 5)}, {"y", flat_view(y, 0, 20)}});
  EXPECT_EQ(std::move(b).build({}), plan);
}

TEST(CopyEngines, TargetsThatLackThemSayWhich) {
  Target target = host_target();
  target.sm_only = {"exchange"};
  EXPECT_EQ(parse_plan(to_text(PlanBuilder(0, target).build({}))).target, target);
  try {
    moves(0, target);
    ADD_FAILURE() << "no error";
  } catch (const InvalidInput& error) {
    EXPECT_THAT(error.what(), HasSubstr("target host moves exchange by multiprocessors only"));
  }
}

// ---- rules of a step ----

std::string refusal(const std::function<void(PlanBuilder&, GroupId, BufferId)>& add) {
  PlanBuilder b(0, host_target());
  const GroupId group = b.group("cp_ce", kAll, true);
  const BufferId symmetric = b.symmetric("s", DType::f32, 32);
  try {
    add(b, group, symmetric);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(CopyEngines, WhatTheyCannotMoveIsRefused) {
  EXPECT_THAT(
      refusal([](PlanBuilder& b, GroupId group, BufferId s) {
        b.add(b.stream("main"), ReduceScatter{group, ReduceOp::sum, flat_view(s, 0, 6), flat_view(s, 8, 2)});
      }),
      HasSubstr("move data and compute nothing"));
  EXPECT_THAT(refusal([](PlanBuilder& b, GroupId group, BufferId s) {
                const BufferId x = b.input("x", DType::f32, 2);
                b.add(b.stream("main"), AllGather{group, flat_view(x, 0, 2), flat_view(s, 0, 6)});
              }),
              HasSubstr("reach only symmetric temporaries, and x is the caller's"));
  EXPECT_THAT(refusal([](PlanBuilder& b, GroupId group, BufferId s) {
                const BufferId t = b.temporary("t", DType::f32, 6);
                b.add(b.stream("main"), AllGather{group, flat_view(s, 0, 2), flat_view(t, 0, 6)});
              }),
              HasSubstr("and t is another one"));
  EXPECT_THAT(refusal([](PlanBuilder& b, GroupId group, BufferId s) {
                b.add(b.stream("main"), Exchange{group, {{1, flat_view(s, 0, 2)}}, {}, {}});
              }),
              HasSubstr("say where it arrives"));
  EXPECT_THAT(
      refusal([](PlanBuilder& b, GroupId group, BufferId s) {
        b.add(b.stream("main"), Exchange{group, {{1, flat_view(s, 0, 2), flat_view(s, 2, 3)}}, {}, {}});
      }),
      HasSubstr("has 2 elements but"));
  EXPECT_THAT(refusal([](PlanBuilder& b, GroupId, BufferId s) {
                b.add(b.stream("main"),
                      Exchange{b.group("cp", kAll), {{1, flat_view(s, 0, 2), flat_view(s, 2, 2)}}, {}, {}});
              }),
              HasSubstr("has no copy engines; leave `there` out"));
  EXPECT_THAT(refusal([](PlanBuilder& b, GroupId, BufferId) { b.group("cp_ce", kAll); }),
              HasSubstr("is there with copy engines"));
}

// ---- all ranks at once ----

TEST(CopyEngines, APlaceThatDiffersBetweenRanksIsFound) {
  std::vector<Plan> plans = all_moves();
  buffer(plans[2], "slot").offset_bytes += 256;
  expect_error<CheckFailure>(
      plans, {"symmetric temporary 2 in group cp_ce[0,1,2]", "20 bytes at 512", "rank 2 20 bytes at 768"});
  plans = all_moves();
  plans[1].symmetric_bytes = 1024, plans[1].arena_bytes = 4124;
  expect_error<CheckFailure>(plans, {"rank 0's symmetric segment has 4096 bytes, rank 1's 1024"});
  plans = all_moves();
  buffer(plans[1], "more").offset_bytes = 1024;
  expect_error<CheckFailure>(plans, {"other temporary more at arena bytes [1024, 1052) lies inside"});
  plans = all_moves();
  for (Plan& plan : plans) buffer(plan, "slot").offset_bytes = 256;
  expect_error<CheckFailure>(plans, {"share bytes"});
}

TEST(CopyEngines, AWriteThatLandsElsewhereIsFound) {
  std::vector<Plan> plans = all_moves();
  exchange_of(plans[1]).sends[0].there.buffer = exchange_of(plans[1]).sends[0].view.buffer;
  expect_error<CheckFailure>(plans, {"rank 1's step", "writes to rank 2 at symmetric bytes [0, 20)",
                                     "that rank receives it at [512, 532)"});
}

TEST(CopyEngines, ACollectiveAtOtherPlacesIsFound) {
  std::vector<Plan> plans = all_moves();
  for (Segment& segment : plans[2].segments) {
    auto* collective = std::get_if<Collective>(&std::get<Step>(segment).work);
    if (collective == nullptr || !std::holds_alternative<AllGather>(*collective)) continue;
    // The same number of bytes, from the place of the slot.
    buffer(plans[2], "slot").first_use = 0;
    std::get<AllGather>(*collective).in.buffer = exchange_of(plans[2]).recvs[0].view.buffer;
  }
  expect_error<CheckFailure>(plans, {"has its in at symmetric bytes [512, 532), rank 0 at [0, 20)"});
}

}  // namespace
}  // namespace cp::testing
