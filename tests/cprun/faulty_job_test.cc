// What the jobs with faults say of themselves.
#include "tests/cprun/faulty_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A job in which nothing happens notes no time to count from.
TEST(FaultyJob, WithoutAFaultHasNoTimeAfterIt) {
  FaultyJob job("none", "between_steps", "1", 1);
  job.finish();
  job.check_code(0);
  EXPECT_EQ(job.fault_pid(), "of nobody");
  EXPECT_THAT(job.report(), AllOf(HasSubstr("no fault was noted"), HasSubstr("exit code 0\n"),
                                  Not(HasSubstr(" ms")), Not(HasSubstr("ended late"))));
}

TEST(FaultyJob, MayCountFromAnotherMoment) {
  FaultyJob job("none", "between_steps", "1", 1);
  job.finish(FaultyJob::Clock::now());
  job.check_code(0);
  EXPECT_THAT(job.report(), IsEmpty());
}

}  // namespace
}  // namespace cp::testing
