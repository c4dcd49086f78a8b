// A program's attention between kernels of its own (examples/prepared_attention.cc), on Gloo and on the
// emulated GPU: it leaves one trace and one result, whichever runs it.
#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/trace.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "traces/compare.h"
#include "traces/trace_files.h"

namespace cp::testing {
namespace {

using cli::TemporaryFolder;
using ::testing::HasSubstr;

constexpr int kSteps = 5;

// What stands behind "losses:".
std::vector<double> losses(const std::string& out) {
  const std::string words = "losses:";
  const std::size_t at = out.find(words);
  if (at == std::string::npos) return {};
  std::istringstream line(out.substr(at + words.size(), out.find('\n', at) - at - words.size()));
  return {std::istream_iterator<double>(line), {}};
}

struct TracedRun {
  ProgramEnd end;
  std::vector<RankTrace> traces;
};

TracedRun run_traced(std::vector<std::string> command, const std::string& trace, const std::string& program,
                     const std::vector<std::string>& environment = {}) {
  for (const std::string& word : {std::string("--trace"), trace, std::string("--"), built(program)})
    command.push_back(word);
  TracedRun made{run(std::move(command), environment), {}};
  if (made.end.exit_code == 0) made.traces = read_trace_path(trace).ranks;
  return made;
}

class OwnKernels : public ::testing::TestWithParam<int> {};

// Losses are sums of squares of what float32 holds, and both back ends round each number that they compare by
// a few units of 2^-24 at most, in each step: 1e-5 is 168 of these units.
TEST_P(OwnKernels, LeaveTheSameTraceAndResultOnGlooAndOnTheEmulatedGpu) {
  if (!std::filesystem::exists(built("cprun_emulated"))) GTEST_SKIP() << "built without the headers of CUDA";
  const TemporaryFolder folder;
  const std::string ranks = str(GetParam());
  const TracedRun host = run_traced({built("cprun"), "--nproc-per-node", ranks}, folder.file("gloo.cptrace"),
                                    "prepared_attention");
  ASSERT_EQ(host.end.exit_code, 0) << host.end.err;
  const TracedRun gpu =
      run_traced({built("cprun_emulated"), "--backend", "nccl", "--nproc-per-node", ranks},
                 folder.file("nccl.cptrace"), "prepared_attention_emulated", {"CP_EMULATED_GPUS=" + ranks});
  ASSERT_EQ(gpu.end.exit_code, 0) << gpu.end.err;
  for (const TracedRun* one : {&host, &gpu}) {
    EXPECT_THAT(one->end.out, HasSubstr(ranks + " ranks, 5 steps: right\n"));
    ASSERT_EQ(one->traces.size(), static_cast<std::size_t>(GetParam()));
    // Keys and values go around: at least a collective for each of the other ranks, pass and step.
    for (const RankTrace& trace : one->traces)
      EXPECT_GE(trace.observed.size(), static_cast<std::size_t>(2 * kSteps * (GetParam() - 1)));
  }
  const TraceComparison compared = compare_traces(host.traces, gpu.traces);
  EXPECT_TRUE(compared.identical)
      << cli::cpsim({"trace", "compare", folder.file("gloo.cptrace"), folder.file("nccl.cptrace")}).out;
  const std::vector<double> of_host = losses(host.end.out), of_gpu = losses(gpu.end.out);
  ASSERT_EQ(of_host.size(), static_cast<std::size_t>(kSteps)) << host.end.out;
  ASSERT_EQ(of_gpu.size(), of_host.size()) << gpu.end.out;
  for (std::size_t step = 0; step < of_host.size(); ++step)
    EXPECT_NEAR(of_gpu[step], of_host[step], 1e-5 * of_host[step]) << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(Ranks, OwnKernels, ::testing::Values(2, 4));

// ---- what cprun does with the traces of programs

TEST(TraceOfAProgram, HasWhatItRanByItsJob) {
  const TemporaryFolder folder;
  const TracedRun one = run_traced({built("cprun"), "--nproc-per-node", "4", "--hash-hosts"},
                                   folder.file("run.cptrace"), "gradient_rank");
  ASSERT_EQ(one.end.exit_code, 0) << one.end.err;
  ASSERT_EQ(one.traces.size(), 4U);
  EXPECT_EQ(first_difference(one.traces, one.traces), std::nullopt);  // issued is observed
  for (const RankTrace& trace : one.traces) {
    EXPECT_FALSE(trace.observed.empty());
    ASSERT_TRUE(trace.environment);
    EXPECT_EQ(trace.environment->backend, "gloo");
    EXPECT_TRUE(trace.environment->host_is_hashed);
  }
}

TEST(TraceOfAProgram, WithoutAJobThereIsNone) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      cprun({"--nproc-per-node", "2", "--trace", folder.file("run.cptrace"), "--", "/bin/true"});
  EXPECT_EQ(end.exit_code, 17) << end.err;
  EXPECT_THAT(end.err,
              HasSubstr("/bin/true has written the traces of 0 of 2 ranks, but a rank writes one only "
                        "if it makes a cp::runtime::Job; leave --trace out"));
}

TEST(TraceOfAProgram, OfAProgramThatFailedIsKeptUpToThere) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      cprun({"--nproc-per-node", "4", "--trace", folder.file("run.cptrace"), "--", built("gradient_rank")},
            {"OTHER_SCALE=1"});
  EXPECT_EQ(end.exit_code, 10) << end.err;
  const std::string words = "the traces up to the failure are in ";
  const std::size_t at = end.err.find(words);
  ASSERT_NE(at, std::string::npos) << end.err;
  const std::string path = end.err.substr(at + words.size(), end.err.find('\n', at) - at - words.size());
  const TraceFile kept = read_trace_path(path);
  EXPECT_TRUE(kept.truncation);
  EXPECT_FALSE(kept.ranks.empty());
}

}  // namespace
}  // namespace cp::testing
