// What public planners emit for the same requests (PyTorch DTensor: B and C; Shardy: F; Rink et al.: G). Each
// of their chains is followed with our moves, executed and verified, and must be matched by our Pareto set in
// time, bytes and peak memory.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/redistribute/lower.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/redistribute/chains.h"

namespace cp::testing {
namespace {

void expect_runs(const Redistribution& redistribution) {
  EXPECT_NO_THROW(sim::run_redistribution(redistribution));
}

struct OneStep {
  const char* row;
  const char* mesh;
  Shape shape;
  const char *from, *to;
  const char* communication;  // "" for none
};

class OneStepOracle : public ::testing::TestWithParam<OneStep> {};

TEST_P(OneStepOracle, NeedsNoMoreThanOneCollective) {
  const OneStep& row = GetParam();
  const Mesh mesh = Mesh::parse(row.mesh);
  const Layout from = layout_by_placements(mesh, row.from, row.shape),
               to = layout_by_placements(mesh, row.to, row.shape);
  const Redistribution planned = plan_redistribution(from, to);
  EXPECT_LE(planned.steps.size(), 1U) << communications(planned);
  EXPECT_EQ(communications(planned).empty(), std::string(row.communication).empty())
      << communications(planned);
  expect_runs(planned);
  const Redistribution theirs = chain({from, to});
  if (!planned.steps.empty()) {
    EXPECT_EQ(communications(theirs), row.communication);
    EXPECT_TRUE(matched_by_pareto_set(theirs));
    expect_runs(theirs);
  }
}

INSTANTIATE_TEST_SUITE_P(
    DTensor, OneStepOracle,
    ::testing::Values(
        OneStep{"B1", "m=4", {12, 3}, "S0", "R", "all_gather"},
        OneStep{"B1", "m=4", {13, 3}, "S0", "R", "all_gather"},
        OneStep{"B1", "m=4", {14, 3}, "S0", "R", "all_gather"},
        OneStep{"B2", "m=4", {3, 12}, "S1", "R", "all_gather"},
        OneStep{"B2", "m=4", {3, 13}, "S1", "R", "all_gather"},
        OneStep{"B2", "m=4", {3, 14}, "S1", "R", "all_gather"}, OneStep{"B3", "m=4", {12, 3}, "R", "R", ""},
        OneStep{"B4", "m=4", {12, 3}, "R", "S0", ""}, OneStep{"B4", "m=4", {13, 3}, "R", "S0", ""},
        OneStep{"B4", "m=4", {3, 14}, "R", "S1", ""}, OneStep{"B5", "m=4", {12, 3}, "P", "R", "all_reduce"},
        OneStep{"B6", "m=4", {12, 3}, "P", "P", ""},
        OneStep{"A4", "m=4", {13, 3}, "P", "S0", "reduce_scatter"},
        OneStep{"A5", "m=4", {14, 3}, "P", "S0", "reduce_scatter"},
        OneStep{"A6", "m=4", {3, 13}, "P", "S1", "reduce_scatter"},
        OneStep{"B14", "m=4", {8, 8}, "S0", "S1", "all_to_all"},
        OneStep{"B14", "m=4", {8, 8, 8}, "S1", "S0", "all_to_all"},
        OneStep{"B14", "m=4", {8, 5}, "S0", "S1", "all_to_all"},
        OneStep{"B14", "m=4", {5, 8}, "S1", "S0", "all_to_all"},
        OneStep{"B14", "m=4", {5, 5}, "S0", "S1", "all_to_all"},
        OneStep{"B15", "a=4,b=1", {16, 8}, "S0,S1", "S0,R", ""},
        OneStep{"B15", "a=4,b=1", {16, 8}, "S0,P", "S0,S1", ""},
        OneStep{"B15", "a=4,b=1", {16, 8}, "S0,R", "S0,S0", ""},
        OneStep{"B16", "m=4", {12, 3}, "S1", "S-1", ""},
        OneStep{"B17", "a=2,b=2", {1, 64, 48}, "S1,S1", "S1,R", "all_gather"},
        OneStep{"B17", "a=2,b=2", {4, 64, 48}, "S1,S1", "S1,R", "all_gather"},
        OneStep{"B17", "a=2,b=2", {1, 64, 48}, "S2,S2", "S2,R", "all_gather"}),
    [](const auto& row) { return std::string(row.param.row) + "_" + std::to_string(row.index); });

// B17: gathering a dimension that everything before it has size 1 needs no packing; a larger one outside
// does.
TEST(RedistributionOracle, B17GatherOfTheOutermostDimensionIsAPureView) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const auto steps_of_rank = [&](const Shape& shape) {
    const Layout from = layout_by_placements(mesh, "S1,S1", shape),
                 to = layout_by_placements(mesh, "S1,R", shape);
    const Plan plan = lower(chain({from, to}), 0);
    return steps_of(plan).size();
  };
  EXPECT_EQ(steps_of_rank({1, 64, 48}), 1U);
  EXPECT_GT(steps_of_rank({4, 64, 48}), 1U);
}

struct ManySteps {
  const char* row;
  const char* mesh;
  Shape shape;
  std::vector<const char*> passes;  // the layouts of the other planner's chain
  const char* communications;
};

void expect_matched(const ManySteps& row, const std::vector<Layout>& layouts) {
  const Redistribution theirs = chain(layouts);
  EXPECT_EQ(communications(theirs), row.communications);
  EXPECT_TRUE(matched_by_pareto_set(theirs))
      << "theirs: " << theirs.time_us << " us, " << theirs.bytes_received_max << " bytes, peak "
      << theirs.peak_bytes;
  expect_runs(theirs);
  expect_runs(plan_redistribution(layouts.front(), layouts.back()));
}

class DTensorChains : public ::testing::TestWithParam<ManySteps> {};

TEST_P(DTensorChains, AreMatched) {
  const ManySteps& row = GetParam();
  const Mesh mesh = Mesh::parse(row.mesh);
  std::vector<Layout> layouts;
  for (const char* text : row.passes) layouts.push_back(layout_by_placements(mesh, text, row.shape));
  expect_matched(row, layouts);
}

INSTANTIATE_TEST_SUITE_P(
    C, DTensorChains,
    ::testing::Values(
        ManySteps{"C1", "a=2,b=2", {8, 8}, {"S0,S1", "S0,S0"}, "all_to_all"},
        ManySteps{"C2", "a=2,b=2", {8, 8}, {"S0,S1", "S0,R", "S1,R", "S1,S0"}, "all_gather all_to_all"},
        ManySteps{"C3", "a=2,b=2", {8, 8}, {"S0,S0", "S0,R", "S1,R", "S1,S1"}, "all_gather all_to_all"},
        ManySteps{"C4", "a=2,b=2", {8, 8, 8}, {"S0,S2", "S0,R", "S1,R", "S1,S0"}, "all_gather all_to_all"},
        ManySteps{"C5", "a=2,b=2", {8, 8, 8}, {"S1,S1", "S1,S2"}, "all_to_all"},
        ManySteps{"C6",
                  "a=2,b=2,c=2",
                  {8, 8},
                  {"S0,S0,S0", "S0,S0,R", "S0,R,R", "S1,R,R", "S1,S1,R", "S1,S1,S1"},
                  "all_gather all_gather all_to_all"},
        ManySteps{"C7",
                  "a=2,b=2,c=2",
                  {8, 8},
                  {"S0,S1,S0", "S0,S1,R", "S0,R,R", "S1,R,R", "S1,S0,R", "S1,S0,S0"},
                  "all_gather all_gather all_to_all"},
        ManySteps{"C8",
                  "a=2,b=2,c=2",
                  {8, 8, 8},
                  {"S0,S1,S2", "S0,S1,R", "S2,S1,R", "S2,S1,S0"},
                  "all_gather all_to_all"},
        ManySteps{"C9", "a=2,b=2,c=2", {8, 8}, {"S1,S0,S0", "R,S0,S0"}, "all_gather"},
        ManySteps{"C10",
                  "a=2,b=2,c=2",
                  {8, 8},
                  {"S1,R,S0", "S1,R,R", "S1,S0,R", "R,S0,R", "R,S0,S0"},
                  "all_gather all_gather"},
        ManySteps{
            "C11", "a=2,b=2,c=2", {8, 8, 8}, {"S0,S0,S1", "S0,S0,S2", "S0,S1,S2"}, "all_to_all all_to_all"},
        ManySteps{"C12",
                  "a=2,b=2,c=2",
                  {8, 8},
                  {"P,P,S0", "P,P,R", "P,R,R", "S0,R,R", "S0,S0,R", "S0,S0,S0"},
                  "all_gather all_reduce reduce_scatter"},
        ManySteps{"C15", "a=4,b=2", {16, 24}, {"P,P", "R,R"}, "all_reduce"},
        ManySteps{"C16", "a=4,b=2", {16, 24}, {"P,P", "S0,S0"}, "reduce_scatter"},
        ManySteps{"C16", "a=4,b=2", {15, 24}, {"P,P", "S0,S0"}, "reduce_scatter"},
        ManySteps{"C17", "a=4,b=2", {16, 24}, {"P,P", "S0,P", "S0,S1"}, "reduce_scatter reduce_scatter"},
        ManySteps{"C18", "a=2,b=2,c=2", {8, 8}, {"P,P,P", "R,R,R"}, "all_reduce"},
        ManySteps{"C19",
                  "a=2,b=2,c=2",
                  {8, 8},
                  {"P,S0,P", "P,S0,R", "P,R,R", "R,R,R"},
                  "all_reduce all_gather all_reduce"},
        ManySteps{"C20", "a=2,b=2,c=2", {8, 8}, {"P,R,P", "R,R,R"}, "all_reduce"},
        ManySteps{"C21", "a=4,b=2", {16, 24}, {"S0,S0", "R,R"}, "all_gather"},
        ManySteps{"C22", "a=4,b=2", {16, 24}, {"S0,S1", "S0,R", "R,R"}, "all_gather all_gather"},
        ManySteps{
            "C23", "a=2,b=2,c=2", {8, 8}, {"P,P,R", "S0,P,R", "S0,S1,R"}, "reduce_scatter reduce_scatter"},
        ManySteps{"C24", "a=2,b=2,c=2", {8, 8}, {"P,P,R", "R,R,R"}, "all_reduce"},
        ManySteps{"C25", "a=2,b=2,c=2", {8, 8}, {"P,R,P", "R,R,P", "R,R,R"}, "all_reduce all_reduce"},
        ManySteps{"C26", "a=2,b=2,c=2", {8, 8}, {"P,S0,R", "P,R,R", "R,R,R"}, "all_gather all_reduce"}),
    [](const auto& row) { return std::string(row.param.row) + "_" + std::to_string(row.index); });

// C27: nested and flat splits differ at uneven sizes, so that a merged gather which treats one as the other
// loses a row. Ours places each block by its index sets.
TEST(RedistributionOracle, C27MergedGatherOfUnevenNestedShardsIsRight) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  for (const Shape& shape : {Shape{5, 3}, Shape{3, 5}, Shape{1, 1}, Shape{7, 2}}) {
    const Layout from = layout_by_placements(mesh, "S0,S0", shape),
                 to = layout_by_placements(mesh, "R,R", shape);
    const Redistribution merged = chain({from, to});
    ASSERT_EQ(merged.steps.size(), 1U);
    EXPECT_EQ(merged.steps[0].move.kind, MoveKind::all_gather);
    expect_runs(merged);
    expect_runs(plan_redistribution(from, to));
  }
}

class ShardyChains : public ::testing::TestWithParam<ManySteps> {};

TEST_P(ShardyChains, AreMatched) {
  const ManySteps& row = GetParam();
  const Mesh mesh = Mesh::parse(row.mesh);
  std::vector<Layout> layouts;
  for (const char* text : row.passes) layouts.push_back(layout_by_axes(mesh, text, row.shape));
  expect_matched(row, layouts);
}

INSTANTIATE_TEST_SUITE_P(
    F, ShardyChains,
    ::testing::Values(
        ManySteps{"F1", "x=2,y=2", {16, 8}, {"y|x", "y|"}, "all_gather"},
        ManySteps{"F2", "x=2,y=2,z=2", {16, 8}, {"x,y,z|", "x|"}, "all_gather"},
        ManySteps{"F3", "x=2,y1=4,y2=2", {16, 8}, {"y1,y2|x", "y1|x"}, "all_gather"},
        ManySteps{"F4", "x=2,y=2,z=2", {16, 8}, {"|", "x|y,z"}, ""},
        ManySteps{"F5", "x=2,y=2,z=2", {16, 8, 8}, {"x|y|", "|y|x"}, "all_to_all"},
        ManySteps{"F6", "x=2,y=2,z=2", {16, 8, 8}, {"x||y,z", "x|y,z|"}, "all_to_all"},
        ManySteps{"F7", "x=2,y=2,z=2", {16, 8}, {"x,z|y", "x|y,z"}, "all_to_all"},
        ManySteps{"F8", "x=4,y=2,z=4", {16, 8, 8}, {"|y,x|", "x|y|", "x||y"}, "all_to_all all_to_all"},
        ManySteps{"F9", "x=2,y=2,z=2", {16, 8, 8}, {"y|x|", "y||x", "||x,y"}, "all_to_all all_to_all"},
        ManySteps{"F10",
                  "x=2,y=2,z=2",
                  {16, 8, 8},
                  {"y|x,z|", "x|y,z|", "|y,z|x", "||x,y,z"},
                  "exchange all_to_all all_to_all"},
        ManySteps{"F11",
                  "x=4,y=2,z=4",
                  {16, 8, 8},
                  {"|y,z|", "x|y,z|", "x,z|y|", "x,z||y"},
                  "all_to_all all_to_all"},
        ManySteps{"F12", "x=2,y=2,z=2", {16, 8, 8}, {"|x|", "|x,y,z|", "||x,y,z"}, "all_to_all"},
        ManySteps{"F13", "x=2,y=2,z=2", {16, 8}, {"|x", "y,z|x", "x,y|z"}, "exchange"},
        ManySteps{"F14", "x=2,y=2,z=2", {8, 4}, {"x,y|", "x,y,z|", "x|y,z"}, "all_to_all"},
        ManySteps{"F15", "x=2,y=2,z=2", {4, 4}, {"x,y|", "x,y|z", "x,z|y", "x|y,z"}, "exchange all_to_all"},
        ManySteps{"F16", "x=2,y=2", {4, 10}, {"|x", "y|x", "x|y", "x,y|"}, "exchange all_to_all"},
        ManySteps{"F17", "x=6", {24, 8}, {"x|", "|"}, "all_gather"}),
    [](const auto& row) { return std::string(row.param.row) + "_" + std::to_string(row.index); });

TEST(RedistributionOracle, F17ReplicatedOnOneMeshIsReplicatedOnAnother) {
  const Shape shape = {24, 8};
  const Layout from = layout_by_placements(Mesh::parse("x=6"), "R", shape);
  const Layout to = layout_by_placements(Mesh::parse("a=2,b=3"), "R,R", shape);
  EXPECT_TRUE(plan_redistribution(from, to).steps.empty());
}

struct Normal {
  const char* row;
  const char* mesh;
  const char *from, *to;
};

// G: a naive chain gathers up to the whole array on the way; a memory-bounded one never holds more than the
// larger end.
class MemoryBounded : public ::testing::TestWithParam<Normal> {};

TEST_P(MemoryBounded, NeverHoldsMuchMoreThanTheLargerEnd) {
  const Normal& row = GetParam();
  const Mesh mesh = Mesh::parse(row.mesh);
  const Shape shape = {12, 12};
  const Layout from = layout_by_axes(mesh, row.from, shape), to = layout_by_axes(mesh, row.to, shape);
  const std::int64_t larger = std::max(max_local_bytes(from), max_local_bytes(to));
  RedistributeOptions cheap_latency;  // so that many small steps would be no reason to gather
  cheap_latency.cost.step_latency_us = cheap_latency.cost.peer_latency_us =
      cheap_latency.cost.local_latency_us = 1e-3;
  for (const RedistributeOptions& options : {RedistributeOptions{}, cheap_latency}) {
    const Redistribution planned = plan_redistribution(from, to, options);
    EXPECT_LE(planned.peak_bytes, planned.bound_bytes);
    for (const RedistributionStep& step : planned.steps) {
      EXPECT_LE(max_local_bytes(step.move.to), larger);
      EXPECT_LE(step.temporary_bytes_max, 2 * larger);
    }
    expect_runs(planned);
  }
}

// Axes are written outermost first here.
INSTANTIATE_TEST_SUITE_P(G, MemoryBounded,
                         ::testing::Values(Normal{"G1", "x1=2,x2=2,y1=3,y2=2", "x2,x1|y2,y1", "y2,y1|x2,x1"},
                                           Normal{"G2", "x1=2,x2=2,y1=3,y2=2", "x2|y2,y1", "y1|x2,x1"},
                                           Normal{"G3", "x1=2,x2=2,y1=3,y2=2", "y1|x2,x1", "x2|y2,y1"},
                                           Normal{"G4", "x1=2,x2=3,y1=3,y2=2", "x2,x1|y2,y1", "y2|x1,x2"}),
                         [](const auto& row) { return std::string(row.param.row); });

TEST(RedistributionOracle, G5OneDimensionFromTwoToThreeParts) {
  const Mesh mesh = Mesh::parse("x=2,y=3");
  const Layout from = layout_by_axes(mesh, "x", {6}), to = layout_by_axes(mesh, "y", {6});
  const Redistribution theirs =
      chain({from, layout_by_axes(mesh, "x,y", {6}), layout_by_axes(mesh, "y,x", {6}), to});
  EXPECT_EQ(communications(theirs), "exchange all_gather");
  EXPECT_TRUE(matched_by_pareto_set(theirs));
  expect_runs(theirs);
}

}  // namespace
}  // namespace cp::testing
