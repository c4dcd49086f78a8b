// Gradients of redistributions by a program of the user's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CprunGradientRank, TakesScaledGradientsBackOverGloo) {
  const ProgramEnd end = cprun({"--nproc-per-node", "4", "--", built("gradient_rank")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, IsEmpty());
}

TEST(CprunGradientRank, ARankThatScalesDifferentlyIsFoundBeforeItRuns) {
  const ProgramEnd end = cprun({"--nproc-per-node", "4", "--", built("gradient_rank")}, {"OTHER_SCALE=1"});
  EXPECT_EQ(end.exit_code, 10) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the ranks' plans differ"));
}

}  // namespace
}  // namespace cp::testing
