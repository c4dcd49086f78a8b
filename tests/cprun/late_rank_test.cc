// A rank that lives but does not come to a collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"
#include "tests/cprun/program.h"

namespace cp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

ProgramEnd run_late(const char* seconds) {
  return cprun({"--timeout", "2", "--grace", "0.5", "--nproc-per-node", "3", "--", built("late_rank")},
               {std::string("LATE=") + seconds});
}

TEST(CprunLateRank, IsNamedWithTheCollectiveThatOthersWaitIn) {
  const ProgramEnd end = run_late("20");
  EXPECT_EQ(end.exit_code, 12);
  EXPECT_THAT(end.err, HasSubstr("rank 1 has not joined "));
  EXPECT_THAT(end.err, HasSubstr("[0,1,2] after 2 s; ranks 0, 2 wait"));
}

TEST(CprunLateRank, WithinTheTimeoutIsNone) { EXPECT_EQ(run_late("1").exit_code, 0); }

ProgramEnd run_late_end(const char* timeout) {
  const cli::TemporaryFolder folder;
  return cprun({"--timeout", timeout, "--grace", "0.5", "--nproc-per-node", "3", "--", built("late_rank")},
               {"END_LATE=2", "NOTE=" + folder.file("note")});
}

TEST(CprunLateRank, TheEndOfAJobIsThatOfAllItsRanks) {
  const ProgramEnd end = run_late_end("10");
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, IsEmpty());
}

// It lives, and only when it is done is it known that all ranks did the same.
TEST(CprunLateRank, TheEndOfAJobWaitsForARankBeyondTheTimeout) {
  const ProgramEnd end = run_late_end("1");
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, IsEmpty());
}

}  // namespace
}  // namespace cp::testing
