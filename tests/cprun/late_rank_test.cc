// A rank that lives but does not come to a collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ProgramEnd run_late(const char* seconds, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"--timeout", "2", "--grace", "0.5", "--nproc-per-node", "3"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.insert(arguments.end(), {"--", built("late_rank")});
  return cprun(arguments, {std::string("LATE=") + seconds});
}

// It lives, and says so: it may compute for as long as it likes, and who waits for it is told. It computes
// until then.
TEST(CprunLateRank, IsWaitedForBeyondTheTimeout) {
  const cli::TemporaryFolder folder;
  const std::string note = "cprun: note: rank";
  const ProgramEnd end = run_with_cue(
      {built("cprun"), "--timeout", "2", "--grace", "0.5", "--nproc-per-node", "3", "--", built("late_rank")},
      {"LATE_UNTIL=" + folder.file("noted")}, note, folder.file("noted"));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  // Where rank 2 is slower than rank 0 by the timeout, the note has only one of them.
  EXPECT_THAT(end.err, AnyOf(HasSubstr(note + "s 0, 2 wait in "), HasSubstr(note + " 0 waits in "),
                             HasSubstr(note + " 2 waits in ")));
  EXPECT_THAT(end.err, HasSubstr("[0,1,2] for rank 1, which has been computing for "));
}

TEST(CprunLateRank, IsNamedWithTheCollectiveThatOthersWaitInWhereItCountsAsStuck) {
  const ProgramEnd end = run_late("60", {"--compute-timeout", "2"});
  EXPECT_EQ(end.exit_code, 12);
  EXPECT_THAT(end.err, HasSubstr("cprun: rank 1 (host "));
  EXPECT_THAT(end.err, AllOf(HasSubstr("has not joined "),
                             HasSubstr("[0,1,2] for 2 s; ranks 0, 2 wait. It is alive: ")));
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
