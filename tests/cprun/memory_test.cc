// What a machine has no memory for is refused before its ranks start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"

namespace cp::testing {
namespace {

using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expect_refused(const std::string& text, const std::string& needed, const std::string& advice) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({scenario(folder, text)});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.out, IsEmpty());
  EXPECT_THAT(end.err, AllOf(HasSubstr(needed), HasSubstr(" are free; use "), HasSubstr(advice)));
}

TEST(CprunMemory, OfRanksIsLookedAtBeforeTheyStart) {
  expect_refused(
      R"(run { mesh: "cp=4" seq_len: 17179869184 q_heads: 8 kv_heads: 2 head_dim: 32 causal: true })",
      "cprun: 4 ranks on this machine need 364.5 TiB (91.12 TiB each), but only ", "seq_len: ");
  expect_refused(R"-(redistribute { mesh: "dp=4" shape: "1048576x1048576x1024" from: "S(0)" to: "R" })-",
                 "cprun: 4 ranks on this machine need ", " % of the elements");
}

TEST(CprunEndpoint, PortZeroTakesOneThatIsFreeOnOneMachine) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--rdzv-endpoint", "127.0.0.1:0", ring(folder)});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const ProgramEnd two = cprun({"--rdzv-endpoint", "127.0.0.1:0", "--nnodes", "2", ring(folder)},
                               {"CPRUN_TOKEN=0123456789abcdef0123456789abcdef"});
  EXPECT_EQ(two.exit_code, 2);
  EXPECT_THAT(two.err, HasSubstr("port 0 takes any free port, and with --nnodes 2 the other machines cannot "
                                 "know which one; choose a port, for example 127.0.0.1:29500"));
}

}  // namespace
}  // namespace cp::testing
