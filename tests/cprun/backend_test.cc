// cprun --backend: what is missing is said, by name, before anything waits.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"

namespace cp::testing {
namespace {

using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string with_nccl(const TemporaryFolder& folder, const std::string& options) {
  return scenario(folder, R"(run { mesh: "cp=2" seq_len: 64 } nccl { )" + options + " }");
}

void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
  const ProgramEnd end = cprun(arguments);
  EXPECT_EQ(end.exit_code, 2) << end.err;
  EXPECT_THAT(end.err, AllOf(StartsWith("cprun: "), HasSubstr(message)));
  EXPECT_THAT(end.out, IsEmpty());
}

TEST(CprunBackend, IsOneOfItsNames) {
  const TemporaryFolder folder;
  expect_refused({"--backend", "mpi", ring(folder)}, "'mpi' is not a backend; use gloo or nccl");
  expect_refused({"--allow-shared-gpu", ring(folder)},
                 "--allow-shared-gpu needs a backend that runs on GPUs; add --backend nccl");
}

// torchrun's spelling; and what no flag is, with the nearest one.
TEST(CprunBackend, TakesUnderscoresAndNamesTheNearestFlag) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--nproc_per_node", "4", "--backend", "gloo", ring(folder)});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("4 ranks on gloo: "));
  expect_refused({"--nproc_per_nod=4", ring(folder)},
                 "unknown flag '--nproc-per-nod=4'; did you mean --nproc-per-node?");
  expect_refused({"--nnodes", "1", "--nnodes", "2", ring(folder)}, "--nnodes was given more than once");
  expect_refused({ring(folder), "more.txtpb"}, "unexpected argument 'more.txtpb'; give one scenario");
}

TEST(CprunBackend, GlooIsWhatRunsUnlessSaid) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--backend", "gloo", ring(folder)});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("4 ranks on gloo: "));
}

TEST(CprunBackend, NcclSaysWhatIsMissing) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--backend", "nccl", ring(folder)});
  if (end.exit_code == 0) GTEST_SKIP() << "nothing is missing";
  EXPECT_EQ(end.exit_code, 2) << end.err;
  EXPECT_THAT(end.err, AnyOf(HasSubstr("this build has no CUDA and NCCL; use --backend gloo, or build "),
                             HasSubstr("--backend nccl needs a GPU: "),  // none, or no driver
                             HasSubstr("use --nproc-per-node ")));       // fewer than ranks
}

TEST(CprunBackend, OptionsOfNcclThatMakeNoSenseAreNamed) {
  const TemporaryFolder folder;
  expect_refused({with_nccl(folder, "min_ctas: 0")}, "nccl.min_ctas: 0 is out of range; use 1 to 64");
  expect_refused({with_nccl(folder, "max_ctas: 65")}, "nccl.max_ctas: 65 is out of range");
  expect_refused({with_nccl(folder, "min_ctas: 9 max_ctas: 8")},
                 "nccl.min_ctas: 9 is more than its max_ctas: 8");
  expect_refused({with_nccl(folder, "cta_policy: \"none\"")},
                 "nccl.cta_policy: \"none\" is unknown; use one of default, efficiency");
  expect_refused({with_nccl(folder, "cta_policy: \"zero\"")},
                 "use attention { transfers: \"copy_engine\" }, or \"efficiency\"");
}

// As cprun profile writes it. What it means for the communicators: tests/cli/profile_test.cc.
TEST(CprunBackend, TakesASoftwareProfile) {
  const TemporaryFolder folder;
  const auto profile = [&](const char* name, const char* ctas) {
    const std::string path = folder.file(name);
    std::ofstream(path) << "name: \"mine\" like: \"cprun\" max_ctas { value: " << ctas
                        << " origin: measured source: \"cprun profile\" }\n";
    return path;
  };
  const ProgramEnd end = cprun({"--verify", "--software", profile("mine.txtpb", "6"), ring(folder)});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  expect_refused({"--software", profile("half.txtpb", "2.5"), ring(folder)},
                 "2.5 is no whole number; use 1 to 64, or 0");
}

// The fabric and Gloo have no use for them, and run the same plans.
TEST(CprunBackend, OptionsOfNcclChangeNoPlan) {
  const TemporaryFolder folder;
  const ProgramEnd end = cprun({"--verify", with_nccl(folder, R"(max_ctas: 8 cta_policy: "efficiency")")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("\nidentical: 2 ranks, "));
}

}  // namespace
}  // namespace cp::testing
