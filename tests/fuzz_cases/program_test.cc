// Programs: the oracle by hand-written plans, what is drawn, and the laws that they are judged by.
#include <chrono>
#include <functional>
#include <ostream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/draw_program.h"
#include "sim/fuzz/fields_law.h"
#include "sim/fuzz/judge.h"
#include "sim/fuzz/program_flaws.h"
#include "sim/fuzz/shrink.h"
#include "sim/proof/exhaustive/program_oracle.h"
#include "traces/fuzz_case.h"

namespace cp::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- the oracle's rules ----

Step& step_at(Plan& plan, std::size_t segment, std::size_t in_body = 0) {
  if (Repeat* repeat = std::get_if<Repeat>(&plan.segments.at(segment))) return repeat->steps.at(in_body);
  return std::get<Step>(plan.segments.at(segment));
}

// 0: t = 1, stream a    1: y = t, stream b    2: t = 2, stream a    3: y = t, stream b
std::vector<Plan> handed_over() {
  PlanBuilder b(0, host_target());
  const StreamId one = b.stream("a"), other = b.stream("b");
  const BufferId t = b.temporary("t", DType::f32, 6), y = b.output("y", DType::f32, 6);
  for (const double value : {1.0, 2.0}) {
    b.add(one, Fill{flat_view(t, 0, 6), value});
    b.add(other, Copy{flat_view(t, 0, 6), flat_view(y, 0, 6)});
  }
  return {std::move(b).build({})};
}

// Slots of a double buffer in a Repeat: filled on one stream, added up on another.
std::vector<Plan> double_buffered() {
  PlanBuilder b(0, host_target());
  const StreamId one = b.stream("a"), other = b.stream("b");
  const BufferId t = b.temporary("t", DType::i64, 4), y = b.inout("y", DType::i64, 2);
  b.begin_repeat(5);
  b.add(one, Fill{flat_view(t, 0, 2, {2, 2, 0}), 3});
  b.add(other, Accumulate{ReduceOp::sum, flat_view(t, 0, 2, {2, 2, 0}), flat_view(y, 0, 2)});
  b.end_repeat();
  return {std::move(b).build({})};
}

// The even elements on one stream, the odd ones on another, as matrices of other shapes.
std::vector<Plan> interleaved() {
  PlanBuilder b(0, host_target());
  const StreamId one = b.stream("a"), other = b.stream("b");
  const BufferId y = b.inout("y", DType::f32, 24);
  b.add(one, Fill{View{y, 0, {3, 4}, {8, 2}, {}}, 1});
  b.add(other, Fill{View{y, 1, {4, 3}, {2, 8}, {}}, 2});
  return {std::move(b).build({})};
}

// Three ranks in pairs.
std::vector<Plan> pairs() {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 3; ++rank) {
    PlanBuilder b(rank, host_target());
    const StreamId stream = b.stream("s");
    const BufferId x = b.inout("x", DType::f32, 2);
    for (const std::vector<Rank>& ranks : {std::vector<Rank>{0, 1}, {1, 2}, {0, 2}}) {
      if (ranks[0] != rank && ranks[1] != rank) continue;
      const GroupId group = b.group("pair", ranks);
      b.add(stream, AllReduce{group, ReduceOp::sum, flat_view(x, 0, 2), flat_view(x, 0, 2)});
    }
    plans.push_back(std::move(b).build({}));
  }
  return plans;
}

std::vector<Plan> exchanged() {
  std::vector<Plan> plans;
  const Digest counts = counts_digest({{0, 1, 2}, {1, 0, 3}});
  for (Rank rank = 0; rank < 2; ++rank) {
    PlanBuilder b(rank, host_target());
    const StreamId stream = b.stream("s");
    const BufferId x = b.input("x", DType::f32, 3), y = b.output("y", DType::f32, rank == 0 ? 3 : 2);
    const GroupId group = b.group("g", {0, 1});
    b.add(stream, Exchange{group,
                           {{1 - rank, flat_view(x, 0, rank == 0 ? 2 : 3)}},
                           {{1 - rank, flat_view(y, 0, rank == 0 ? 3 : 2)}},
                           counts});
    plans.push_back(std::move(b).build({}));
  }
  return plans;
}

struct Row {
  std::string name;
  std::function<std::vector<Plan>()> plans;
  std::function<void(std::vector<Plan>&)> damage;
  std::string why;  // part of the oracle's reason; empty: legal
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
};

void nothing(std::vector<Plan>&) {}

class ProgramOracle : public ::testing::TestWithParam<Row> {};

TEST_P(ProgramOracle, KnowsWhatIsLegalAndSoDoesCheck) {
  std::vector<Plan> plans = GetParam().plans();
  GetParam().damage(plans);
  const auto why = refuse_program(plans);
  if (GetParam().why.empty()) {
    EXPECT_FALSE(why) << *why;
    EXPECT_NO_THROW(check(plans));
  } else {
    ASSERT_TRUE(why);
    EXPECT_THAT(*why, HasSubstr(GetParam().why));
    EXPECT_THROW(check(plans), Error);
  }
}

const Row kRows[] = {
    {"handed_over", handed_over, nothing, ""},
    {"read_after_write", handed_over, [](auto& p) { step_at(p[0], 1).after.clear(); }, "nothing orders them"},
    {"write_after_read", handed_over, [](auto& p) { step_at(p[0], 2).after.clear(); }, "nothing orders them"},
    {"superfluous", handed_over,
     [](auto& p) {
       step_at(p[0], 3).after = {{0, 0}, {1, 0}, {2, 0}};
     },
     ""},
    {"own_edge", handed_over,
     [](auto& p) {
       step_at(p[0], 1).after.push_back({1, 0});
     },
     "issued no earlier"},
    {"later_edge", handed_over,
     [](auto& p) {
       step_at(p[0], 1).after.push_back({2, 0});
     },
     "issued no earlier"},
    {"no_step", handed_over,
     [](auto& p) {
       step_at(p[0], 1).after.push_back({4, 0});
     },
     "waits for no step"},
    {"no_iteration", handed_over, [](auto& p) { step_at(p[0], 1).after[0].iterations_back = 1; },
     "no common Repeat"},
    {"unwritten", handed_over,
     [](auto& p) {
       step_at(p[0], 0).work = Kernel(Fill{flat_view(0, 0, 5), 1});
     },
     "nothing has written"},
    {"output", handed_over,
     [](auto& p) {
       for (const std::size_t s : {1, 3})
         step_at(p[0], s).work = Kernel(Copy{flat_view(0, 0, 5), flat_view(1, 1, 5)});
     },
     "is not all written"},
    {"out_of_bounds", handed_over,
     [](auto& p) {
       step_at(p[0], 3).work = Kernel(Copy{flat_view(0, 1, 6), flat_view(1, 0, 6)});
     },
     "leaves t"},
    {"arena", handed_over, [](auto& p) { --p[0].arena_bytes; }, "leaves the arena"},
    {"declared_use", handed_over, [](auto& p) { --p[0].buffers[0].last_use; },
     "outside of its declared uses"},
    {"double_buffered", double_buffered, nothing, ""},
    {"slot_too_early", double_buffered, [](auto& p) { ++step_at(p[0], 0, 0).after.at(0).iterations_back; },
     "nothing orders them"},
    {"slot_unread", double_buffered, [](auto& p) { step_at(p[0], 0, 1).after.clear(); },
     "nothing orders them"},
    {"more_iterations", double_buffered, [](auto& p) { std::get<Repeat>(p[0].segments[0]).count = 9; }, ""},
    {"interleaved", interleaved, [](auto& p) { EXPECT_TRUE(step_at(p[0], 1).after.empty()); }, ""},
    {"write_after_write", interleaved,
     [](auto& p) { std::get<Fill>(std::get<Kernel>(step_at(p[0], 1).work)).out.strides[1] = 7; },
     "nothing orders them"},
    {"pairs", pairs, nothing, ""},
    {"circle", pairs, [](auto& p) { std::swap(p[0].segments[0], p[0].segments[1]); }, "in a circle"},
    {"alone", pairs, [](auto& p) { p[2].segments.pop_back(); }, "a different number of times"},
    {"reduction", pairs,
     [](auto& p) { std::get<AllReduce>(std::get<Collective>(step_at(p[1], 0).work)).op = ReduceOp::max; },
     "differs"},
    {"inputs", pairs, [](auto& p) { p[1].inputs.high = 1; }, "other inputs"},
    {"exchanged", exchanged, nothing, ""},
    {"counts", exchanged,
     [](auto& p) { std::get<Exchange>(std::get<Collective>(step_at(p[1], 0).work)).counts.low ^= 1; },
     "a digest of other counts"},
    {"sizes", exchanged,
     [](auto& p) {
       std::get<Exchange>(std::get<Collective>(step_at(p[0], 0).work)).sends[0].view.shape[0] = 1;
     },
     "do not match"},
};
INSTANTIATE_TEST_SUITE_P(Rows, ProgramOracle, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return row.param.name; });

TEST(ProgramOracleEdges, AreThoseThatConflictsNeed) {
  for (const auto& make : {handed_over, double_buffered, interleaved}) {
    std::vector<Plan> plans = make();
    order_conflicts(plans[0]);
    EXPECT_EQ(plans[0], make()[0]) << "here the builder's edges are the least";
  }
}

// ---- what programs compute ----

TEST(ProgramValuesOf, ACopyBetweenInnerSizesOf6And4) {
  PlanBuilder b(0, host_target());
  const BufferId x = b.input("x", DType::i64, 16), y = b.output("y", DType::i64, 12);
  b.add(b.stream("s"), Copy{View{x, 1, {2, 6}, {8, 1}, {}}, View{y, 0, {3, 4}, {1, 3}, {}}});
  const Plan plan = std::move(b).build({});
  ProgramValues start{{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {}}};
  EXPECT_THAT(interpret(std::span(&plan, 1), start).values[0][1],
              ElementsAre(1, 5, 11, 2, 6, 12, 3, 9, 13, 4, 10, 14));
}

TEST(ProgramValuesOf, ARepeat) {
  const std::vector<Plan> plans = double_buffered();
  EXPECT_THAT(interpret(plans, {{{}, {1, -1}}}).values[0][1], ElementsAre(16, 14));
}

TEST(ProgramValuesOf, RanksInPairs) {
  const ProgramResult result = interpret(pairs(), {{{1, 10}}, {{2, 20}}, {{4, 40}}});
  EXPECT_TRUE(result.exact);
  EXPECT_THAT(result.values[0][0], ElementsAre(10, 100));
  EXPECT_THAT(result.values[1][0], ElementsAre(7, 70));
  EXPECT_THAT(result.values[2][0], ElementsAre(10, 100));
}

TEST(ProgramValuesOf, AnExchange) {
  const ProgramResult result = interpret(exchanged(), {{{1, 2, 3}, {}}, {{4, 5, 6}, {}}});
  EXPECT_THAT(result.values[0][1], ElementsAre(4, 5, 6));
  EXPECT_THAT(result.values[1][1], ElementsAre(1, 2));
}

TEST(ProgramValuesOf, WhatAFloatingTypeDoesNotHoldIsNotExact) {
  EXPECT_FALSE(interpret(pairs(), {{{1 << 24, 0}}, {{1, 0}}, {{0, 0}}}).exact);
}

// ---- drawing ----

TEST(DrawnPrograms, AreLegalWithoutAFlawAndOftenNotWithOne) {
  int refused = 0, flawed = 0, misfits = 0, repeats = 0;
  std::set<int> flaws;
  for (std::uint64_t number = 0; number < 400; ++number) {
    const proto::Program job = draw_case(FuzzTarget::programs, 3, number).program();
    const DrawnProgram drawn = make_program(job);
    std::vector<Plan> plans = build_program(job, drawn.drafts);
    for (const auto& steps : drawn.misfits) misfits += static_cast<int>(steps.size());
    for (const Segment& segment : plans[0].segments)
      repeats += std::holds_alternative<Repeat>(segment) ? 1 : 0;
    if (job.flaw() == proto::Program::none) {
      EXPECT_FALSE(refuse_program(plans)) << write_case_text(draw_case(FuzzTarget::programs, 3, number));
      continue;
    }
    plant_flaw(job, plans);
    ++flawed;
    flaws.insert(job.flaw());
    refused += refuse_program(plans) ? 1 : 0;
  }
  EXPECT_GT(flawed, 140);
  EXPECT_LT(flawed, 260);
  EXPECT_GT(refused, flawed / 4);
  EXPECT_LT(refused, flawed) << "some do no harm";
  EXPECT_EQ(flaws.size(), 17U);
  EXPECT_GT(misfits, 50);
  EXPECT_GT(repeats, 30);
}

TEST(DrawnPrograms, LoseAnItemAndKeepTheOthers) {
  proto::Program job = draw_case(FuzzTarget::programs, 3, 1).program();
  job.set_ranks(2), job.set_streams(2), job.set_buffers(4), job.set_items(6), job.set_iterations(0);
  job.clear_flaw();
  const auto works = [&] {
    std::multiset<std::string> all;
    for (const Plan& plan : make_program(job).drafts) {
      for (const StepRef& ref : steps_of(plan)) {
        Plan one = plan;
        one.segments = {*ref.step};
        if (operation_name(ref.step->work) != "fill") all.insert(str(plan.self, to_text(one)));
      }
    }
    return all;
  };
  const std::multiset<std::string> all = works();
  for (int item = 0; item < job.items(); ++item) {
    job.clear_without();
    job.add_without(item);
    const std::multiset<std::string> fewer = works();
    EXPECT_TRUE(std::includes(all.begin(), all.end(), fewer.begin(), fewer.end())) << item;
  }
}

TEST(DrawnPrograms, RefuseCountsOutOfRange) {
  for (const char* text : {"program { streams: 1 buffers: 1 }", "program { ranks: 4 streams: 1 buffers: 1 }",
                           "program { ranks: 1 streams: 1 buffers: 1 items: 17 }"}) {
    try {
      judge(read_case_text(text, "case"));
      ADD_FAILURE() << text;
    } catch (const InvalidInput& refusal) {
      EXPECT_THAT(refusal.what(), HasSubstr("is out of range; use"));
    }
  }
}

// ---- judging ----

TEST(JudgedPrograms, HoldAndHaveOneDigest) {
  int ran = 0;
  for (std::uint64_t number = 0; number < 200; ++number) {
    const proto::FuzzCase drawn = draw_case(FuzzTarget::programs, 11, number);
    const Judgement judgement = judge(drawn);
    EXPECT_FALSE(judgement.finding) << judgement.finding->message() << "\n" << write_case_text(drawn);
    EXPECT_EQ(judge(read_case_text(write_case_text(drawn), "case")).digest, judgement.digest);
    ran += judgement.ran ? 1 : 0;
  }
  EXPECT_GT(ran, 80) << "legal ones run with data";
}

TEST(JudgedPrograms, ShrinkToTheItemThatMatters) {
  proto::FuzzCase large = read_case_text(
      "program { seed: 5 ranks: 3 streams: 3 buffers: 5 items: 12 iterations: 4 edges: more flaw: drop_edge "
      "place: 77 } "
      "order { kind: pct depth: 3 seed: 5 } laws: \"texts\"",
      "case");
  // A bug of sums, where there are two streams.
  const auto fails = [](const proto::FuzzCase& next) {
    if (next.program().streams() < 2) return false;
    for (const Plan& plan : make_program(next.program()).drafts) {
      for (const StepRef& ref : steps_of(plan)) {
        if (operation_name(ref.step->work) == "accumulate") return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(fails(large));
  ShrinkOptions options;
  options.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  options.still_fails = [&](const proto::FuzzCase& next) -> std::optional<proto::FuzzCase> {
    return fails(next) ? std::optional(next) : std::nullopt;
  };
  const proto::FuzzCase small = shrink(large, options);
  const proto::Program& job = small.program();
  EXPECT_EQ(job.ranks(), 1) << write_case_text(small);
  EXPECT_EQ(job.streams(), 2);
  EXPECT_EQ(job.iterations(), 0);
  EXPECT_EQ(job.items() - job.without_size(), 1);
  EXPECT_EQ(job.flaw(), proto::Program::none);
  EXPECT_EQ(job.edges(), proto::Program::conflicts);
  EXPECT_FALSE(judge(small).finding);
}

// ---- the forms of a plan ----

TEST(PlanFields, EachChangesDigestAndText) {
  std::set<std::string> names;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Plan plan = draw_steps(seed);
    const std::int64_t changes = num_field_changes(plan);
    for (std::int64_t i = 0; i < changes; ++i) {
      const ChangedPlan changed = with_field_changed(plan, i);
      EXPECT_NE(digest(changed.plan), digest(plan)) << changed.what;
      EXPECT_NE(to_text(changed.plan), to_text(plan)) << changed.what;
      names.insert(changed.what.substr(changed.what.rfind(' ') + 1));
    }
  }
  for (const char* name : {"window", "diagonal", "k_len", "advance.phase", "stream", "edge.step"})
    EXPECT_EQ(names.count(name), 1U) << name;
}

}  // namespace
}  // namespace cp::sim
