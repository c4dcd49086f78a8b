#include "sim/proof/run/redistribute_run.h"

#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/redistribute/gradient.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/proof/run/free_memory.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Request {
  std::string mesh, shape, dtype, from, to, to_mesh;
};

void PrintTo(const Request& request, std::ostream* out) {
  *out << "--mesh " << request.mesh << " --shape " << request.shape << " --dtype " << request.dtype
       << " --from '" << request.from << "' --to '" << request.to << "'";
  if (!request.to_mesh.empty()) *out << " --to-mesh " << request.to_mesh;
}

Layout source_of(const Request& request) {
  return parse_layout(request.from, Mesh::parse(request.mesh), parse_ints(request.shape, 'x', "size"),
                      parse_dtype(request.dtype));
}

Layout target_of(const Request& request) {
  return parse_layout(request.to, Mesh::parse(request.to_mesh.empty() ? request.mesh : request.to_mesh),
                      parse_ints(request.shape, 'x', "size"), parse_dtype(request.dtype));
}

Redistribution plan(const Request& request, const RedistributeOptions& options = {}) {
  return plan_redistribution(source_of(request), target_of(request), options);
}

std::int64_t target_elements(const Layout& layout) {
  std::int64_t elements = 0;
  for (const Rank rank : layout.mesh.ranks()) elements += local_numel(layout, rank);
  return elements;
}

class RunOf : public ::testing::TestWithParam<Request> {};

// Its arenas are larger than the redistribution declares.
TEST_P(RunOf, TakesPlansForATargetThatAligns) {
  RedistributeRunOptions options;
  options.target = gpu_target("sm90");
  EXPECT_NO_THROW(run_redistribution(plan(GetParam()), options));
}

TEST_P(RunOf, ComparesEveryElementOfEveryRank) {
  for (const Schedule schedule : {Schedule::parallel, Schedule::baton}) {
    RedistributeRunOptions options;
    options.schedule = schedule;
    options.seed = 11;
    const Redistribution redistribution = plan(GetParam());
    const RedistributeRun run = run_redistribution(redistribution, options);
    EXPECT_EQ(run.elements_compared, target_elements(redistribution.target));
    EXPECT_EQ(run.bytes_compared, run.elements_compared * size_bytes(redistribution.target.dtype));
    EXPECT_LE(run.peak_bytes, redistribution.peak_bytes);
    EXPECT_LE(run.memory_bytes, run_memory_bytes(redistribution));
  }
}

// Same mesh, other mesh over the same ranks, other ranks; every split, reduction and dtype; uneven, empty,
// scalar.
const Request kRequests[] = {
    {"a=2,b=2", "8x8", "f32", "S(0),S(1)", "S(1),S(0)", ""},
    {"a=2,b=2,c=2", "9x7x5", "f32", "S(0)[0],S(0)[1],S(0)[2]", "S(1)[2],S(1)[1],S(1)[0]", ""},
    {"a=2,b=3", "13x5", "bf16", "S(0,balanced),S(1)", "S(0,head_tail),R", ""},
    {"a=4", "50x3", "i64", "S(0,per_sequence:0/10/50:head_tail)", "S(0,striped:3)", ""},
    {"a=4", "9x4", "f16", "S(0,sizes:3/0/5/1)", "S(1)", ""},
    {"a=4", "9x4", "f32", "S(0,per_sequence:0/4/4/9:sizes:1/0/3/0:0/0/0/0:0/2/1/2)", "R", ""},
    {"a=2,b=3", "10x4", "bf16", "S(0,per_sequence:0/4/10:sizes:3/1:0/6),R",
     "S(0,per_sequence:0/7/10:sizes:2/5:3/0)[0],S(0,balanced)[1]", ""},
    {"a=4@0/2/1/3", "5", "i32", "S(0)", "R", ""},
    {"a=3,b=2", "9x7x5", "f32", "P(sum),S(0)", "S(1),R", ""},
    {"a=3,b=2", "9x7x5", "bf16", "P(sum),P(sum)", "S(0),S(0)", ""},
    {"a=3,b=2", "9x7x5", "f32", "P(avg),P(avg)", "S(1),R", ""},
    {"a=3,b=2", "9x7x5", "f16", "P(avg),P(sum)", "R,S(2)", ""},
    {"a=3,b=2", "9x7x5", "i32", "P(product),P(product)", "R,R", ""},
    {"a=3,b=2", "9x7x5", "i64", "P(min),S(1,head_tail)", "S(1,striped:1),R", ""},
    {"a=3,b=2", "9x7x5", "f16", "P(max),S(1,head_tail)", "R,R", ""},
    {"a=2,b=2", "6x6", "f32", "P(sum),S(0)", "P(sum),S(1)", ""},
    {"a=2,b=2", "6x6", "bf16", "P(avg),P(sum)", "P(avg),S(1)", ""},
    {"a=2,b=2", "6x6", "f32", "P(product),S(0)", "P(product),R", ""},
    {"a=2,b=2", "7x5", "f32", "S(0),S(1)", "S(1)", "x=4"},
    {"a=4@0/2/1/3", "8x8", "f32", "P(sum)", "S(1),R", "b=3,c=2"},
    {"a=2@5/3", "8x3", "i32", "S(0)", "S(1),R", "b=2,c=2@7/1/0/4"},
    {"a=2", "0x5", "f32", "S(0)", "S(1)", ""},
    {"a=8", "3x2", "f32", "S(0)", "S(1)", ""},
    {"a=1,b=2", "4x4", "f32", "P(sum),S(0)", "S(0),S(1)", ""},
    {"a=2,b=2", "8x8", "f32", "S(0),R", "S(0),R", ""},
    // More ranks than elements, where one of two reductions is of an average, and where one axis stays
    // partial.
    {"a=2,b=2", "1", "f32", "P(avg),P(sum)", "R", "c=1"},
    {"a=2,b=2", "1", "f32", "P(product),S(0)", "P(product),R", ""},
    // A list of parts that was written for the outer axis stays one.
    {"a=3,b=2", "23x3", "f32", "S(0,dealt:1:0/1/1/0/1/2/2/2/0/0/0/1/0/1/0/1/0/1/2/1/0/2/2),S(0)", "S(1),R",
     ""},
};
INSTANTIATE_TEST_SUITE_P(RedistributeRun, RunOf, ::testing::ValuesIn(kRequests));

TEST(RedistributeRun, ScalarsAreReduced) {
  const Mesh mesh = Mesh::parse("a=4");
  const Layout source = parse_layout("P(sum)", mesh, {}, DType::f32);
  const Layout target = parse_layout("R", mesh, {}, DType::f32);
  EXPECT_EQ(run_redistribution(plan_redistribution(source, target)).elements_compared, 4);
}

TEST(RedistributeRun, ValuesTravelAsAnotherType) {
  RedistributeOptions options;
  options.travel_dtype = DType::bf16;
  const Request request{"a=2,b=2", "8x6", "f32", "P(sum),S(0)", "S(1),R", ""};
  EXPECT_EQ(run_redistribution(plan(request, options)).elements_compared, 8 * 6 * 2);
}

TEST(RedistributeRun, EveryPlanOfTheParetoSetIsRight) {
  const Request request{"a=2,b=2,c=2", "9x8x7", "f32", "P(sum),S(0),S(1)", "S(2),S(1),S(0)", ""};
  const auto plans = pareto_redistributions(source_of(request), target_of(request));
  ASSERT_FALSE(plans.empty());
  for (const Redistribution& one : plans) EXPECT_NO_THROW(run_redistribution(one));
}

RedistributeRunOptions scaled_by(double scale) {
  RedistributeRunOptions options;
  options.scale = scale;
  options.digests = true;
  return options;
}

TEST(RedistributeRun, GradientsKeepTheSumOfContributions) {
  for (const PartialRule rule : {PartialRule::first_keeps, PartialRule::divide}) {
    for (const GradientRule gradient : {GradientRule::adjoint, GradientRule::replicated}) {
      GradientOptions options;
      options.rule = gradient;
      options.redistribute.partial_rule = rule;
      for (const Request& request : {Request{"a=2,b=2", "8x6", "f32", "R,S(0)", "S(0),R", ""},
                                     Request{"a=3,b=2", "7x5", "f32", "R,R", "R,S(1)", ""},
                                     Request{"a=2,b=3", "7x5", "bf16", "P(sum),S(1)", "R,R", ""},
                                     Request{"a=3,b=2", "7x5", "f32", "P(avg),P(avg)", "R,S(1)", ""}}) {
        const Gradient backward = plan_gradient(source_of(request), target_of(request), options);
        EXPECT_NO_THROW(run_redistribution(backward.redistribution, scaled_by(backward.scale)))
            << ::testing::PrintToString(request);
      }
    }
  }
}

// A scale is one rounding, the same in every world: the results have digests unless a mean over three ranks
// was taken before.
TEST(RedistributeRun, ScaledResultsAreTheIndexSetsTimesTheFactor) {
  for (const std::string dtype : {"f32", "f16", "bf16"}) {
    for (const Request& request : {Request{"a=3,b=2", "9x7", dtype, "S(0),S(0)", "R,R", ""},
                                   Request{"a=3,b=2", "9x7", dtype, "R,R", "S(1),R", ""},
                                   Request{"a=3,b=2", "7x5", dtype, "P(sum),S(1)", "R,R", ""},
                                   Request{"a=3,b=2", "7x5", dtype, "P(avg),P(sum)", "R,P(sum)", ""},
                                   Request{"a=3,b=2", "7x5", dtype, "S(0),R", "S(0),R", ""}}) {
      for (const double scale : {6.0, 1 / 6.0, 0.25, 8.0, 1 / 4096.0, 4096.0, -3.0}) {
        const RedistributeRun run = run_redistribution(plan(request), scaled_by(scale));
        EXPECT_EQ(run.traces.front().digests.contains("output"), request.from[2] != 'a')
            << ::testing::PrintToString(request) << " times " << scale;
      }
    }
  }
}

TEST(RedistributeRun, AScaledResultThatNobodyAskedForIsFound) {
  const Redistribution redistribution = plan({"a=3", "9x7", "f32", "S(0)", "R", ""});
  for (const double scale : {3.0, 1 / 3.0, 2.0}) {
    const std::vector<Plan> scaled = lower_all_scaled(redistribution, scale),
                            plain = lower_all(redistribution);
    EXPECT_THAT([&] { run_redistribution(redistribution, plain, scaled_by(scale)); },
                ThrowsMessage<CheckFailure>(
                    AllOf(HasSubstr("elements on 3 ranks are wrong"), HasSubstr("with the factor"))));
    EXPECT_THAT([&] { run_redistribution(redistribution, scaled, scaled_by(1)); },
                ThrowsMessage<CheckFailure>(HasSubstr("elements on 3 ranks are wrong")));
    EXPECT_NO_THROW(run_redistribution(redistribution, scaled, scaled_by(scale)));
  }
}

TEST(RedistributeRun, IntegersAreNotScaled) {
  EXPECT_THAT(
      [] {
        run_redistribution(plan({"a=2", "4", "i32", "S(0)", "R", ""}), scaled_by(2));
      },
      ThrowsMessage<InvalidInput>(AllOf(HasSubstr("i32"), HasSubstr("use a floating dtype"))));
}

// ---- what must not pass ----

// The n-th step of the plan with this work.
template <class Work>
Work& find_work(Plan& plan, int n = 0) {
  for (Segment& segment : plan.segments) {
    auto& step = std::get<Step>(segment);
    if (auto* kernel = std::get_if<Kernel>(&step.work)) {
      if constexpr (std::is_constructible_v<Kernel, Work>) {
        if (auto* work = std::get_if<Work>(kernel); work != nullptr && n-- == 0) return *work;
      }
    }
  }
  throw std::logic_error("no such step");
}

TEST(RedistributeRun, APlanThatMovesTheWrongElementsIsFound) {
  const Redistribution redistribution = plan({"a=2", "4x6", "f32", "S(0)", "S(1)", ""});
  std::vector<Plan> plans = lower_all(redistribution);
  // Rank 1 packs its two blocks in the wrong order: legal as a plan, wrong as this redistribution.
  std::swap(find_work<Copy>(plans[1], 0).in, find_work<Copy>(plans[1], 1).in);
  EXPECT_THAT([&] { run_redistribution(redistribution, plans); },
              ThrowsMessage<CheckFailure>(AllOf(
                  HasSubstr("12 elements on 2 ranks are wrong"), HasSubstr("on rank 0: output[6]"),
                  HasSubstr("element (2, 0)"), HasSubstr("where the index sets say"), HasSubstr("seed 0"))));
}

TEST(RedistributeRun, ALostContributionIsFound) {
  RedistributeOptions lean;
  lean.max_memory_factor = 0.45;  // rounds of Exchange and Accumulate
  const Redistribution redistribution = plan({"a=4", "7x5", "f32", "P(sum)", "S(1)", ""}, lean);
  std::vector<Plan> plans = lower_all(redistribution);
  auto& add = find_work<Accumulate>(plans[1]);
  add.op = ReduceOp::max;
  EXPECT_THAT([&] { run_redistribution(redistribution, plans); },
              ThrowsMessage<CheckFailure>(HasSubstr("on rank 1: output[")));
}

TEST(RedistributeRun, BytesThatNobodyCountedAreFound) {
  Redistribution redistribution = plan({"a=2", "4x6", "f32", "S(0)", "S(1)", ""});
  redistribution.steps.front().wire_bytes_received_total -= 4;
  EXPECT_THAT([&] { run_redistribution(redistribution); },
              ThrowsMessage<LedgerFailure>(AllOf(HasSubstr("received 48 bytes"), HasSubstr("counted 44"))));
}

TEST(RedistributeRun, APeakAboveTheDeclaredOneIsFound) {
  Redistribution redistribution = plan({"a=2", "4x6", "f32", "S(0)", "S(1)", ""});
  redistribution.peak_bytes -= 1;
  EXPECT_THROW(run_redistribution(redistribution), CheckFailure);
}

TEST(RedistributeRun, MoreMemoryThanTheLimitIsRefusedWithAShapeThatFits) {
  const Request request{"a=4", "4096x1024", "f32", "S(0)", "S(1)", ""};
  const std::int64_t needed = run_memory_bytes(plan(request));
  RedistributeRunOptions options;
  options.memory_limit_bytes = needed / 2;
  EXPECT_THAT(
      [&] { run_redistribution(plan(request), options); },
      ThrowsMessage<InvalidInput>(AllOf(HasSubstr("4096x1024 f32 on 4 ranks needs " + human_bytes(needed)),
                                        HasSubstr("use --shape 2048x1024"))));
  options.memory_limit_bytes = needed;
  EXPECT_NO_THROW(run_redistribution(plan(request), options));
}

TEST(RedistributeRun, RanksBeyondTheThreadsAreRefused) {
  EXPECT_THAT(
      [&] {
        run_redistribution(plan({"a=2@0/100000", "4", "f32", "S(0)", "R", ""}));
      },
      ThrowsMessage<InvalidInput>(AllOf(HasSubstr("rank 100000"), HasSubstr("number the ranks from 0"))));
}

TEST(RedistributeRun, EqualSeedsGiveEqualTraces) {
  RedistributeRunOptions options;
  options.digests = true;
  const Redistribution redistribution = plan({"a=2,b=2", "8x6", "f32", "S(0),S(1)", "S(1),S(0)", ""});
  const auto first = run_redistribution(redistribution, options).traces;
  EXPECT_EQ(first, run_redistribution(redistribution, options).traces);
  options.schedule = Schedule::baton;
  EXPECT_EQ(first, run_redistribution(redistribution, options).traces) << "the schedule must not show";
  options.seed = 1;
  EXPECT_NE(first, run_redistribution(redistribution, options).traces) << "other data";
  ASSERT_EQ(first.size(), 4U);
  EXPECT_TRUE(first.front().digests.contains("output"));
}

TEST(RedistributeRun, PhasesAreReported) {
  std::vector<std::string> phases;
  RedistributeRunOptions options;
  options.on_phase = [&](std::string_view phase) { phases.emplace_back(phase); };
  run_redistribution(plan({"a=2", "4x6", "f32", "S(0)", "S(1)", ""}), options);
  EXPECT_THAT(phases, ::testing::IsSupersetOf({"checking the plans", "running", "comparing"}));
}

TEST(FreeMemory, IsLessThanAnyMachineHas) {
  const auto free = free_memory_bytes();
  if (!free) GTEST_SKIP() << "this system does not say";
  EXPECT_GT(*free, 0);
  EXPECT_LT(*free, std::int64_t{1} << 50);
}

// Any placements on a=2,b=3.
rc::Gen<std::string> any_placement(bool partial) {
  std::vector<std::string> known = {"R", "S(0)", "S(1)", "S(0,balanced)", "S(1,head_tail)", "S(0,striped:2)"};
  if (partial) known.emplace_back("P(sum)");
  return rc::gen::elementOf(known);
}

RC_GTEST_PROP(RedistributeRun, AnyLayoutsArriveWhole, ()) {
  const Request request{
      "a=2,b=3",
      str(pick("rows", rc::gen::inRange(0, 14)), "x", pick("columns", rc::gen::inRange(1, 14))),
      pick("dtype", rc::gen::element<std::string>("f32", "f16", "bf16", "i32", "i64")),
      str(*any_placement(true), ",", *any_placement(true)),
      str(*any_placement(false), ",", *any_placement(false)),
      pick("to_mesh", rc::gen::element<std::string>("", "c=3,d=2@4/5/6/7/8/9"))};
  RC_LOG() << ::testing::PrintToString(request) << "\n";
  const Redistribution redistribution = plan(request);
  RC_ASSERT(run_redistribution(redistribution).elements_compared == target_elements(redistribution.target));
}

}  // namespace
}  // namespace cp::sim
