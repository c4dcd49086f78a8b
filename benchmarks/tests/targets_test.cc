#include "benchmarks/gpu/targets.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GpuBenchmarkTargets, WhatMeetsThemIsNotNamed) {
  EXPECT_THAT(missed_targets({{"Attention/forward/causal/4k/16x16", {{"share", 0.98}}},
                              {"Ring/forward/head_tail", {{"share", 0.92}}},
                              {"Ring/backward/head_tail", {{"share", 0.90}}},
                              {"Moves/pack/64MiB", {{"share", 0.85}}},
                              {"HostCost/busy/steps_to_a_stream:1", {{"us/step", 4}}},
                              {"HostCost/traced/busy/steps_to_a_stream:1", {{"us/step", 5}}},
                              {"RunStart/graph/forward", {{"us/run", 60}}}}),
              IsEmpty());
}

TEST(GpuBenchmarkTargets, WhatMissesThemIsNamedWithItsValue) {
  EXPECT_THAT(missed_targets({{"Attention/backward/full/8k/16x16", {{"share", 0.9799}}},
                              {"Ring/forward/contiguous", {{"share", 0.91}}},
                              {"Ring/backward/contiguous", {{"share", 0.89}}},
                              {"Moves/cast/64MiB", {{"share", 0.84}}},
                              {"HostCost/idle/steps_to_a_stream:64", {{"us/step", 4.01}}},
                              {"HostCost/traced/idle/steps_to_a_stream:64", {{"us/step", 5.01}}},
                              {"RunStart/forward", {{"us/run", 61}}},
                              {"Moves/unpack/64MiB", {{"share", 0.9}}}}),
              ElementsAre(AllOf(HasSubstr("Attention/backward/full"), HasSubstr("at least 0.98"),
                                HasSubstr("0.9799")),
                          AllOf(HasSubstr("Ring/forward"), HasSubstr("0.91")),
                          AllOf(HasSubstr("Ring/backward"), HasSubstr("0.89")),
                          AllOf(HasSubstr("Moves/cast"), HasSubstr("0.84")),
                          AllOf(HasSubstr("HostCost/idle"), HasSubstr("at most 4"), HasSubstr("4.01")),
                          AllOf(HasSubstr("HostCost/traced"), HasSubstr("at most 5"), HasSubstr("5.01")),
                          AllOf(HasSubstr("RunStart/forward"), HasSubstr("at most 60"), HasSubstr("61"))));
}

// Moves of 256 MiB are measured for the profile; what they tell of a launch is less.
TEST(GpuBenchmarkTargets, OthersHaveNone) {
  EXPECT_THAT(missed_targets({{"Moves/pack/256MiB", {{"share", 0.1}}}, {"Moves/pack/64MiB", {{"share", 1}}}}),
              IsEmpty());
}

TEST(GpuBenchmarkTargets, NothingMeasuredMeetsNone) {
  EXPECT_THAT(missed_targets({}), ElementsAre(HasSubstr("no benchmark that has a target")));
  EXPECT_THAT(missed_targets({{"Moves/pack/256MiB", {{"share", 1}}}}),
              ElementsAre(HasSubstr("no benchmark that has a target")));
  EXPECT_THAT(missed_targets({{"Ring/forward/head_tail", {{"ours_us", 1}}}}),
              ElementsAre(HasSubstr("was not measured")));
  EXPECT_THAT(
      missed_targets({{"HostCost/busy/1", {{"us/step", std::numeric_limits<double>::quiet_NaN()}}},
                      {"Ring/forward/head_tail", {{"share", std::numeric_limits<double>::quiet_NaN()}}}}),
      ElementsAre(HasSubstr("HostCost"), HasSubstr("Ring")));
}

}  // namespace
}  // namespace cp::benchmarks
