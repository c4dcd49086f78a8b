#include "sim/planner/search/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/planner/questions.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two layouts; the second one is 1 % behind, and ahead where attention is slower (by 3 %) or the network
// faster (by 1 %).
Sensitivity two_layouts() {
  Sensitivity of;
  of.layouts = {parse_parallel_layout("cp=8"), parse_parallel_layout("tp=8")};
  of.step_us = {100, 101};
  of.changes = {{"attention", 0.9, {109, 106}, 1},
                {"attention", 1.1, {91, 95}, 0},
                {"network", 0.9, {102, 105}, 0, Rate::network},
                {"network", 1.1, {99, 98}, 1, Rate::network},
                {"products", 0.9, {103, 104}, 0},
                {"products", 1.1, {97, 98}, 0}};
  return of;
}

TEST(Measurements, TheRateThatCostsMostNotToKnowComesFirst) {
  const PlanQuestion question = testing::training_question("llama-3.1-8b", 2, 8192, 16);
  const auto found = measurements(question, two_layouts());
  ASSERT_EQ(found.size(), 2U) << "products change nothing";
  EXPECT_EQ(found[0].rate, "attention");
  EXPECT_DOUBLE_EQ(found[0].regret_us, 1.5);
  EXPECT_DOUBLE_EQ(found[0].settles, 0.75);
  EXPECT_EQ(found[1].rate, "network");
  EXPECT_DOUBLE_EQ(found[1].settles, 0.25);
  // 1.505 us before a tie's width behind as it is, 2.47 us beyond it at a tenth: it turns that part of the
  // way.
  ASSERT_EQ(found[0].turns.size(), 1U);
  EXPECT_NEAR(found[0].turns[0].factor, 1 - 0.1 * 1.505 / (1.505 + 2.47), 1e-9);
  EXPECT_EQ(found[0].turns[0].layout, 1);
  EXPECT_DOUBLE_EQ(found[0].turns[0].gain_share, 3.0 / 109);
  EXPECT_NEAR(found[1].turns[0].factor, 1 + 0.1 * 1.505 / (1.505 + 0.51), 1e-9);
}

TEST(Measurements, EachHasTheCommandThatMeasuresIt) {
  const PlanQuestion question = testing::training_question("llama-3.1-8b", 2, 8192, 16);
  EXPECT_EQ(measurement_command(question, Rate::attention_backward).profile,
            "cprun profile --nproc-per-node 1 -o mine.txtpb");
  EXPECT_THAT(measurement_command(question, Rate::attention_backward).quick, IsEmpty());
  EXPECT_THAT(measurement_command(question, Rate::inside).profile, HasSubstr("--nproc-per-node 8 "));
  const MeasurementCommand network = measurement_command(question, Rate::network);
  EXPECT_THAT(network.profile, AllOf(HasSubstr("--nnodes 2 --node-rank 0"), HasSubstr("--rdzv-endpoint")));
  EXPECT_THAT(network.other, HasSubstr("--nnodes 2 --node-rank 1"));
  EXPECT_EQ(measurement_command(question, Rate::latency).profile, network.profile)
      << "of a message, not of a kernel";
  const PlanQuestion one_node = testing::training_question("llama-3.1-8b", 1, 8192, 16);
  EXPECT_EQ(measurement_command(one_node, Rate::latency).profile,
            measurement_command(question, Rate::inside).profile);
  EXPECT_THAT(network.quick, AllOf(HasSubstr("mpirun -np 16 "), HasSubstr("all_gather_perf")));
}

TEST(Measurements, NoneWhereTheBestStaysTheBest) {
  Sensitivity of = two_layouts();
  for (Changed& changed : of.changes) changed.best = 0;
  EXPECT_THAT(measurements(testing::training_question("llama-3.1-8b", 2, 8192, 16), of), IsEmpty());
}

}  // namespace
}  // namespace cp::sim
