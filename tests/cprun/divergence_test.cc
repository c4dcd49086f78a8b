// A rank that runs another plan than the others: found before the plans run where they are compared, else
// while they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cprun/faulty_job.h"

namespace cp::testing {
namespace {

TEST(CprunDivergence, ARankWithAnotherPlanIsNamedBeforeItRuns) {
  for (int rank = 0; rank < kFaultyRanks; ++rank) {
    FaultyJob job("diverge", "plan", str(rank));
    job.finish();
    job.check_code(10);
    job.check_says("the ranks' plans differ (inputs: ");
    job.check_says(str(", rank ", rank, " has "));
    job.check_one_cause();
    EXPECT_EQ(job.report(), "");
  }
}

// A rank with that fault, in a job that goes on for so long that only watching it can find it.
void expect_named_while_it_runs(const std::string& fault) {
  for (int rank = 0; rank < kFaultyRanks; ++rank) {
    FaultyJob job("diverge", fault, str(rank), 100'000);
    job.finish();
    job.check_code(10);
    job.check_says(str("cprun: rank ", rank, " "));
    job.check_says(" of cp[0,1,2] differently from ranks ");
    job.check_one_cause();
    EXPECT_EQ(job.report(), "");
  }
}

// The plans do not hang: the sums of one are the maxima of the other. So it could go on for ever, with wrong
// results.
TEST(CprunDivergence, ARankThatRunsAnotherPlanIsNamedWhileItRuns) { expect_named_while_it_runs("step"); }

// The plan is shorter, so that a message of another size than the others expect arrives.
TEST(CprunDivergence, ARankThatRunsAShorterPlanIsNamedWhileItRuns) { expect_named_while_it_runs("length"); }

}  // namespace
}  // namespace cp::testing
