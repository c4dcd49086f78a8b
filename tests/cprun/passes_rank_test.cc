// A program of the user's own that runs its passes as cprun runs those of a scenario.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CprunPassesRank, RunsPassesOfItsOwnOverGloo) {
  const ProgramEnd end = cprun({"--nproc-per-node", "4", "--", built("passes_rank")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, IsEmpty());
}

TEST(CprunPassesRank, PassesThatDifferAreFoundBeforeAnyRuns) {
  const ProgramEnd end = cprun({"--nproc-per-node", "4", "--", built("passes_rank")}, {"OTHER_INPUTS=1"});
  EXPECT_EQ(end.exit_code, 10) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the ranks' plans differ"));
  EXPECT_THAT(end.out, IsEmpty());
}

}  // namespace
}  // namespace cp::testing
