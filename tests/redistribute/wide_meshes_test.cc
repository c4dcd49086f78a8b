// Requests that are large in axes or in ranks: many layouts to pass through, of which not all can be tried,
// and many ranks, of which one writes its plan. Where the data of all ranks fit, they run.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/redistribution.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/redistribute/chains.h"

namespace cp::testing {
namespace {

// "R,R,...", with some placements from the front.
std::string padded_with_r(std::string front, int axes) {
  for (int axis = 0; axis < axes; ++axis) front += front.empty() ? "R" : ",R";
  return front;
}

std::string axes_of_size(int size, int count) {
  std::string text;
  for (int axis = 0; axis < count; ++axis)
    text += std::string(axis > 0 ? "," : "") + "m" + std::to_string(axis) + "=" + std::to_string(size);
  return text;
}

void expect_sound(const Redistribution& planned) {
  EXPECT_LE(planned.peak_bytes, planned.bound_bytes);
  const bool by_time = planned.objective == Objective::time;
  EXPECT_LE(planned.least_possible,
            by_time ? planned.time_us : static_cast<double>(planned.wire_bytes_received_max));
  EXPECT_GE(planned.times_the_best(), 1);
}

struct Wide {
  const char *mesh, *from, *to;
  Shape shape;
};

class WideRequests : public ::testing::TestWithParam<Wide> {};

// Each has more layouts to pass through than can be tried; with this many ranks their data can be run.
TEST_P(WideRequests, ArePlannedWithABoundAndRight) {
  const Mesh mesh = Mesh::parse(GetParam().mesh);
  const Layout from = parse_layout(GetParam().from, mesh, GetParam().shape, DType::f32);
  const Layout to = parse_layout(GetParam().to, mesh, GetParam().shape, DType::f32);
  for (const Objective objective : {Objective::time, Objective::bytes}) {
    RedistributeOptions options;
    options.objective = objective;
    const Redistribution planned = plan_redistribution(from, to, options);
    expect_sound(planned);
    EXPECT_NO_THROW(sim::run_redistribution(planned));
  }
  for (const Redistribution& choice : pareto_redistributions(from, to)) expect_sound(choice);
}

INSTANTIATE_TEST_SUITE_P(
    Redistribute, WideRequests,
    ::testing::Values(Wide{"dp=2,cp=2,tp=2,pp=2", "S(0),S(0,head_tail),S(1),R", "R,R,R,R", {64, 8, 4}},
                      Wide{"dp_replicate=2,dp_shard=2,cp=2,tp=2,pp=2",
                           "S(0),R,S(0,head_tail),S(1),R",
                           "R,R,R,R,R",
                           {65, 12}},
                      Wide{"dp=2,ring=2,ulysses=2,tp=2,pp=2",
                           "R,S(0,head_tail),S(0,balanced),S(1),R",
                           "R,R,R,S(1),R",
                           {65, 8, 4}},
                      Wide{"dp=2,ring=2,ulysses=2,tp=2,pp=2",
                           "P(sum),S(0,head_tail),S(0,balanced),S(1),R",
                           "R,P(sum),R,S(1),S(0,striped:3)",
                           {65, 8, 4}},
                      Wide{"a=2,b=2,c=2,d=2,e=2,f=2",
                           "S(0),S(1),P(sum),S(0),R,S(1)",
                           "S(1),S(1),S(0),R,P(sum),S(0)",
                           {33, 40}},
                      Wide{"a=2,b=2,c=2,d=2,e=2,f=2", "R,R,R,S(0,head_tail),R,R", "R,R,R,R,R,R", {130, 6}}));

// More contributions on the slow axes than what the direct way takes from each: reduced first, and made
// partial again.
TEST(WidePartials, SumsThatStayPartialAreReducedOnTheWayWhereThatIsLess) {
  const Mesh mesh = Mesh::parse("a=8,b=8");
  const Layout from = parse_layout("P(sum),S(0)", mesh, {64, 64}, DType::f32);
  const Layout to = parse_layout("P(sum),R", mesh, {64, 64}, DType::f32);
  RedistributeOptions options;
  options.objective = Objective::bytes;
  const Redistribution planned = plan_redistribution(from, to, options);
  // A rank receives seven parts of a 64th in a reduce_scatter and seven in an all_gather, in place of seven
  // eighths.
  EXPECT_EQ(planned.wire_bytes_received_max, 14 * 64 * 64 * 4 / 64);
  EXPECT_NO_THROW(sim::run_redistribution(planned));
}

// ---- axes by their numbers ----

// Axes of one rank count in an axis's number, but in nothing else.
TEST(WideMeshes, PartialsOfAnyAxisNumberAreReduced) {
  const std::string mesh = axes_of_size(1, 40) + ",q=2";
  const Layout from = parse_layout(padded_with_r("", 40) + ",P(sum)", Mesh::parse(mesh), {6, 4}, DType::f32);
  for (const char* to : {"R", "S(0)", "S(1)"}) {
    const Layout target =
        parse_layout(padded_with_r("", 40) + "," + to, Mesh::parse(mesh), {6, 4}, DType::f32);
    const Redistribution planned = plan_redistribution(from, target);
    ASSERT_EQ(planned.steps.size(), 1U) << to;
    EXPECT_EQ(planned.steps[0].move.axes, std::vector<int>{40});
    EXPECT_NO_THROW(sim::run_redistribution(planned));
  }
}

TEST(WideMeshes, ThirteenAxesAreRefusedByTheirMesh) {
  const Mesh mesh = Mesh::parse(axes_of_size(2, 13));
  const Layout from = parse_layout(padded_with_r("S(0)", 12), mesh, {4}, DType::f32);
  try {
    plan_redistribution(from, parse_layout(padded_with_r("", 13), mesh, {4}, DType::f32));
    FAIL() << "13 axes are planned";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("13 axes of more than one rank"), std::string::npos)
        << error.what();
  }
}

// Splits of every kind on twelve axes, at sizes that they do not divide: 4,096 ranks, of which the plans of
// three are written.
TEST(WideMeshes, AnyLayoutsOnTwelveAxesArePlanned) {
  const Mesh mesh = Mesh::parse(axes_of_size(2, 12));
  const Shape shape = {4097, 333, 129};
  const std::vector<const char*> layouts = {
      "S(0),S(0,head_tail),S(1),R,S(0),S(2),S(2),R,S(0,balanced),S(1),R,S(2)",
      "S(1),S(1),S(1),S(1),S(2),S(2),S(0,striped:3),S(0),S(0),R,R,S(0)",
      "P(sum),P(sum),S(1),R,S(0),S(2),P(sum),R,S(0),S(1),R,S(2)",
      "R,R,R,R,R,R,R,R,R,R,R,R",
  };
  for (const char* from : layouts) {
    for (const char* to : layouts) {
      SCOPED_TRACE(std::string(from) + " -> " + to);
      const Redistribution planned = plan_redistribution(parse_layout(from, mesh, shape, DType::bf16),
                                                         parse_layout(to, mesh, shape, DType::bf16));
      expect_sound(planned);
      EXPECT_EQ(planned.steps.empty(), std::string(from) == to);
      for (const Rank rank : {0, 1234, 4095}) EXPECT_LE(peak_bytes(lower(planned, rank)), planned.peak_bytes);
    }
  }
}

// ---- many ranks ----

TEST(ManyRanks, OneOf16384WritesItsPlan) {
  struct Row {
    const char *from, *to;
    Shape shape;
    const char* communications;
  };
  const Mesh mesh = Mesh::parse("dp=16384");
  for (const Row& row :
       {Row{"S(0)", "R", {1 << 20}, "all_gather"}, Row{"S(0,balanced)", "R", {(1 << 20) + 1}, "all_gather"},
        Row{"S(0)", "S(1)", {16384, 16384}, "all_to_all"},
        Row{"P(sum)", "S(0)", {(1 << 20) + 1, 3}, "reduce_scatter"},
        Row{"P(sum)", "R", {1 << 20}, "all_reduce"}}) {
    const Redistribution planned = plan_redistribution(parse_layout(row.from, mesh, row.shape, DType::f32),
                                                       parse_layout(row.to, mesh, row.shape, DType::f32));
    EXPECT_EQ(communications(planned), row.communications) << row.from << " -> " << row.to;
    expect_sound(planned);
    const Plan plan = lower(planned, 16383);
    EXPECT_LE(peak_bytes(plan), planned.peak_bytes);
  }
}

// Sums and means on unevenly many ranks, of a tensor whose leanest chains do not fit the bound: the search
// spends its effort and its patience before it comes to the end of any chain, since the last move's cost is
// only bounded.
TEST(ManyRanks, AChainIsFoundWhenTheEffortIsSpent) {
  const Mesh mesh = Mesh::parse("a=2,b=8,c=2,d=4,e=3");
  const Shape shape = {67108865};
  const Layout from = parse_layout("P(avg),R,P(avg),P(sum),P(sum)", mesh, shape, DType::f32);
  const Layout to = parse_layout("S(0,head_tail),P(sum),P(avg),P(sum),S(0)", mesh, shape, DType::f32);
  try {
    expect_sound(plan_redistribution(from, to));
  } catch (const MemoryBoundTooTight& error) {
    RedistributeOptions options;
    options.max_memory_factor = error.factor_that_works();
    expect_sound(plan_redistribution(from, to, options));
  }
}

// The figures of many ranks are those of each: counted for all of 96 uneven ones, whose plans are all
// written.
TEST(ManyRanks, FiguresAreThoseOfThePlans) {
  for (const char* mesh_text : {"a=96", "a=8,b=12", "a=3,b=4,c=8"}) {
    const Mesh mesh = Mesh::parse(mesh_text);
    const int axes = mesh.num_axes();
    for (const char* split : {"S(0)", "S(0,balanced)", "S(0,head_tail)", "S(1,striped:2)"}) {
      const Layout from = parse_layout(padded_with_r(split, axes - 1), mesh, {1021, 103}, DType::f32);
      const Layout to = parse_layout(padded_with_r("S(1,balanced)", axes - 1), mesh, {1021, 103}, DType::f32);
      for (const Layout& target :
           {to, parse_layout(padded_with_r("", axes), mesh, {1021, 103}, DType::f32)}) {
        const Redistribution planned = plan_redistribution(from, target);
        std::int64_t peak = 0;
        const std::vector<Plan> plans = lower_all(planned);
        for (const Plan& plan : plans) peak = std::max(peak, peak_bytes(plan));
        EXPECT_EQ(peak, planned.peak_bytes) << mesh_text << ": " << split;
        EXPECT_NO_THROW(check(plans));
      }
    }
  }
}

}  // namespace
}  // namespace cp::testing
