// Jobs beside another user who connects first wherever their ranks listen (scripts/scorecard/strangers): none
// is broken, none is read, and what came is said.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cprun/run_program.h"

namespace cp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(CprunStrangers, NeitherBreakJobsNorReadThem) {
  if (run({"sh", "-c", "command -v python3"}).exit_code != 0) GTEST_SKIP() << "the stranger needs python3";
  const ProgramEnd end = run({"python3", "scripts/scorecard/strangers", "--tries", "4", "--json", "--bin",
                              std::filesystem::path(built("cprun")).parent_path()});
  if (end.exit_code == 2) GTEST_SKIP() << end.err;
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_THAT(end.out, HasSubstr("\"tries\": 4, \"broken\": 0, \"read\": 0"));
  EXPECT_THAT(end.out, ContainsRegex("\"noted\": [1-9]"));  // somebody was there
}

}  // namespace
}  // namespace cp::testing
