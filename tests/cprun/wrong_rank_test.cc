// Ranks that do not do the same: the job never ends with 0, no rank tells a success, and the one that differs
// is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Wrong {
  const char* kind;
  int at;  // of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, exchange
};

ProgramEnd run_wrong(const Wrong& wrong, int who, int ranks = 4) {
  return cprun(
      {"--timeout", "6", "--grace", "0.5", "--nproc-per-node", str(ranks), "--", built("wrong_rank")},
      {str("KIND=", wrong.kind), str("AT=", wrong.at), str("WHO=", who), "STEPS=2"});
}

TEST(CprunWrongRank, RanksThatDoTheSameEndWell) {
  const ProgramEnd end = run_wrong({"none", 0}, 0);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("all is well"));
}

// The program ends at once, so that no heartbeat has told of the difference: the goodbyes do, or the
// collectives that do not match.
TEST(CprunWrongRank, TheRankThatDiffersIsNamed) {
  const Wrong all[] = {{"reduction", 0}, {"reduction", 2}, {"root", 4}, {"dtype", 1}, {"count", 3},
                       {"plan", 0},      {"plan", 4},      {"plan", 5}, {"skip", 0},  {"skip", 5},
                       {"repeat", 1},    {"repeat", 5},    {"swap", 0}, {"swap", 4}};
  int who = 0;
  for (const Wrong& wrong : all) {
    who = (who + 1) % 4;
    const ProgramEnd end = run_wrong(wrong, who);
    const std::string what = str(wrong.kind, " at ", wrong.at, " by rank ", who, ": ", end.out, end.err);
    EXPECT_EQ(end.exit_code, 10) << what;
    EXPECT_THAT(end.out, Not(HasSubstr("all is well"))) << what;
    EXPECT_THAT(end.err, HasSubstr(str("cprun: rank ", who, " "))) << what;
  }
}

// The same collectives of another plan: what lies between them may differ.
TEST(CprunWrongRank, AnotherPlanWithEqualCollectivesIsNeverTakenForTheSame) {
  const ProgramEnd end = run_wrong({"plan", 5}, 1, 2);
  EXPECT_EQ(end.exit_code, 10) << end.out << end.err;
  EXPECT_THAT(end.err,
              HasSubstr("exchange #11 of cp[0,1] differently from rank 0: with other arguments, in another "
                        "plan, or after other collectives"));
}

}  // namespace
}  // namespace cp::testing
