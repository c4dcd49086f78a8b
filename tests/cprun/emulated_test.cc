// cprun on the nccl backend, over an emulated GPU (tests/emulated_gpu): the same device, kernels and messages
// as on a real one.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"

namespace cp::testing {
namespace {

using cli::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CprunEmulated : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(built("cprun_emulated")))
      GTEST_SKIP() << "built without the headers of CUDA";
  }

  static std::vector<std::string> command(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {built("cprun_emulated")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  static ProgramEnd on_gpus(int gpus, const std::vector<std::string>& arguments) {
    return run(command(arguments), {str("CP_EMULATED_GPUS=", gpus)});
  }
  static std::string attention(const TemporaryFolder& folder, const std::string& more) {
    return scenario(folder,
                    R"(run { mesh: "cp=2" strategy: "ring" balance: "head_tail" seq_len: 128 q_heads: 4)"
                    R"( kv_heads: 2 head_dim: 64 dtype: bf16 causal: true backward: true )" +
                        more);
  }
};

TEST_F(CprunEmulated, TwoRanksOfOneGpuAreTheFabrics) {
  const TemporaryFolder folder;
  const ProgramEnd end = on_gpus(1, {"--backend", "nccl", "--nproc-per-node", "2", "--allow-shared-gpu",
                                     "--verify", attention(folder, "}")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("[rank 0] 2 ranks on nccl: "),
                             HasSubstr("the results equal those of one device\n"),
                             HasSubstr("\nidentical: 2 ranks, ")));
}

TEST_F(CprunEmulated, SoAreThoseOfARecurrence) {
  const TemporaryFolder folder;
  const std::string delta =
      scenario(folder, R"(recurrence { rule: "delta" mesh: "cp=3" strategy: "recursive_doubling")"
                       R"( seq_len: 50 key_heads: 2 value_heads: 4 head_dim: 8 backward: true })");
  const ProgramEnd end =
      on_gpus(1, {"--backend", "nccl", "--nproc-per-node", "3", "--allow-shared-gpu", "--verify", delta});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("\nidentical: 3 ranks, "));
}

// Beyond the timeout: it lives, as the server knows, and the other's watchdog asks.
TEST_F(CprunEmulated, ARankThatComesLateIsWaitedFor) {
  const TemporaryFolder folder;
  const ProgramEnd end = run_with_cue(command({"--backend", "nccl", "--timeout", "2", "--grace", "0.5",
                                               "--nproc-per-node", "2", "--", built("late_rank_emulated")}),
                                      {"CP_EMULATED_GPUS=2", "LATE_UNTIL=" + folder.file("noted")},
                                      "cprun: note: rank", folder.file("noted"));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("cprun: note: rank 0 waits in "),
                             HasSubstr("for rank 1, which has been computing for ")));
}

// Rank 1 builds each of its graphs for longer than the timeout: it lives, and all groups have connected.
TEST_F(CprunEmulated, ARankThatBuildsForLongIsWaitedFor) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      run(command({"--backend", "nccl", "--timeout", "5", "--verify", attention(folder, "}")}),
          {"CP_EMULATED_GPUS=2", "CP_EMULATED_BUILD_MS=0,7000"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err,
              ContainsRegex("cprun: note: rank 0 waits in prepare #[0-9]+ of plans of ring\\[0,1\\] for rank "
                            "1, which has been computing for "));
  EXPECT_THAT(end.out, HasSubstr("\nidentical: 2 ranks, "));
}

// Whose buffers are copied, and which warms up.
TEST_F(CprunEmulated, AProgramRunsPassesOfItsOwn) {
  const ProgramEnd end =
      on_gpus(4, {"--backend", "nccl", "--nproc-per-node", "4", "--", built("passes_rank_emulated")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, IsEmpty());
}

TEST_F(CprunEmulated, RanksWithAGpuEachAreTheFabrics) {
  const TemporaryFolder folder;
  const ProgramEnd attention = on_gpus(4, {"--backend", "nccl", "--verify", ring(folder)});
  EXPECT_EQ(attention.exit_code, 0) << attention.err;
  EXPECT_THAT(attention.out, HasSubstr("\nidentical: 4 ranks, "));
  const std::string path = scenario(
      folder, R"x(redistribute { mesh: "dp=2,tp=2" shape: "13x8" from: "S(0),P(sum)" to: "S(0),R" })x");
  const ProgramEnd redistribution = on_gpus(4, {"--backend", "nccl", "--verify", path});
  EXPECT_EQ(redistribution.exit_code, 0) << redistribution.err;
  EXPECT_THAT(redistribution.out, HasSubstr("\nidentical: 4 ranks, "));
}

// Rank 0 has no part: the others' communicator is not split from the world's.
TEST_F(CprunEmulated, AMeshMayLeaveRanksOut) {
  const TemporaryFolder folder;
  const std::string path = scenario(
      folder, R"(run { mesh: "cp=2@1/2" seq_len: 50 q_heads: 2 kv_heads: 2 head_dim: 16 causal: true })");
  const ProgramEnd end = on_gpus(3, {"--backend", "nccl", "--verify", path});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("\nidentical: 2 ranks, "));
}

TEST_F(CprunEmulated, PlansAreForTheGpuUnlessTheScenarioSaysOtherwise) {
  const TemporaryFolder folder;
  std::map<std::string, std::string> shown;
  for (const char* target : {"", "host"}) {
    const std::string more = *target == '\0' ? "}" : str("target: \"", target, "\" }");
    const ProgramEnd end = on_gpus(2, {"--backend", "nccl", "--verify", "--trace",
                                       folder.file("nccl.cptrace"), attention(folder, more)});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    shown[target] = cli::cpsim({"trace", "show", folder.file("nccl.cptrace")}).out;
    EXPECT_THAT(shown[target],
                AllOf(HasSubstr(", nccl, world size 2"), HasSubstr("gpu Emulated GPU (sm_90)")));
  }
  // Fused steps work the sums of rows out themselves.
  EXPECT_THAT(shown[""], ::testing::Not(HasSubstr("attention_delta")));
  EXPECT_THAT(shown["host"], HasSubstr("attention_delta"));
}

TEST_F(CprunEmulated, GpusOfDifferentGenerationsRunPlansForATargetThatTheScenarioNames) {
  const TemporaryFolder folder;
  const auto run_for = [&](const std::string& target) {
    return run(command({"--backend", "nccl", "--verify", attention(folder, target + "}")}),
               {"CP_EMULATED_GPUS=2", "CP_EMULATED_GPU_CAPABILITY=8.0,9.0"});
  };
  const ProgramEnd nobody = run_for("");
  EXPECT_EQ(nobody.exit_code, 2) << nobody.out;
  EXPECT_THAT(nobody.err,
              HasSubstr("the ranks' GPUs have different targets: sm80 (Emulated GPU (sm_80)) on rank 0, and "
                        "sm90 (Emulated GPU (sm_90)) on rank 1; a plan is made for one target, so name it "
                        "in the scenario, for example target: \"sm"));
  for (const char* target : {"host", "sm80", "sm90"}) {
    const ProgramEnd end = run_for(str("target: \"", target, "\""));
    EXPECT_EQ(end.exit_code, 0) << target << end.err;
    EXPECT_THAT(end.out, HasSubstr("\nidentical: 2 ranks, ")) << target;
  }
}

// One of sm_86 has the kernels of sm_80: an A10 beside an A100.
TEST_F(CprunEmulated, GpusOfOneMajorVersionRunOnePlan) {
  const TemporaryFolder folder;
  for (const char* capabilities : {"8.0,8.6", "8.9", "10.3", "12.1"}) {
    const ProgramEnd end = run(command({"--backend", "nccl", "--verify", attention(folder, "}")}),
                               {"CP_EMULATED_GPUS=2", str("CP_EMULATED_GPU_CAPABILITY=", capabilities)});
    EXPECT_EQ(end.exit_code, 0) << capabilities << end.err;
    EXPECT_THAT(end.out, HasSubstr("\nidentical: 2 ranks, ")) << capabilities;
  }
}

// The forward pass has one exchange, which rank 1 then did twice: once in the warm-up. It is told of as being
// still in it, or at it, or at the meeting where it says that it cannot build the plan of the backward pass:
// which of them the server has heard of last is a matter of speed.
TEST_F(CprunEmulated, AGpuRefusesFusedStepsThatItsGenerationDoesNotTake) {
  const TemporaryFolder folder;
  const std::string path =
      scenario(folder, R"(run { mesh: "cp=2" seq_len: 128 q_heads: 2 kv_heads: 2 head_dim: 136 dtype: bf16)"
                       R"( causal: true backward: true target: "sm90" })");
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--no-warm-up"}}) {
    std::vector<std::string> arguments = {"--backend", "nccl", path};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramEnd end =
        run(command(arguments), {"CP_EMULATED_GPUS=2", "CP_EMULATED_GPU_CAPABILITY=9.0,8.0"});
    EXPECT_EQ(end.exit_code, 2) << end.out;
    EXPECT_THAT(
        end.err,
        AllOf(HasSubstr("cprun: rank 1 "), HasSubstr("(attention_backward"),
              ContainsRegex(str(" (exchange #", flags.empty() ? 1 : 0,
                                " of|prepare #[0-9]+ of plans of) ring\\[0,1\\]")),
              HasSubstr("head_dim 136 is above 128, the backward kernels' limit; use the exact engine")));
  }
}

TEST_F(CprunEmulated, OptionsOfTheCommunicatorsAreTaken) {
  const TemporaryFolder folder;
  const ProgramEnd end = on_gpus(
      2,
      {"--backend", "nccl", "--verify",
       attention(folder,
                 R"(} nccl { min_ctas: 1 max_ctas: 8 cta_policy: "efficiency" register_buffers: true })")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
}

// Each pass runs twice, and its third run is one launch of a graph. The traces are the fabric's all the same.
TEST_F(CprunEmulated, PlansAsCudaGraphsLeaveTheTracesOfTheFabric) {
  const TemporaryFolder folder;
  const ProgramEnd end =
      on_gpus(2, {"--backend", "nccl", "--verify", "--cuda-graphs", attention(folder, "}")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("identical: 2 ranks"));
  EXPECT_THAT(end.err, Not(HasSubstr("not as a graph")));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--backend", "nccl", "--no-warm-up"}, {"--backend", "gloo"}}) {
    std::vector<std::string> flags = wrong;
    flags.insert(flags.end(), {"--cuda-graphs", attention(folder, "}")});
    const ProgramEnd refused = on_gpus(2, flags);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--cuda-graphs is for --backend nccl"));
  }
}

// That of a container: 64 MiB, and NCCL takes 33 for each of the ranks.
TEST_F(CprunEmulated, SharingAGpuNeedsSharedMemory) {
  const TemporaryFolder folder;
  const auto with = [](const char* shared_memory, const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {
        "unshare",
        "--mount",
        "/bin/sh",
        "-c",
        str("mount -t tmpfs -o size=", shared_memory, " tmpfs /dev/shm && exec \"$@\""),
        "sh"};
    const std::vector<std::string> rest = command(arguments);
    argv.insert(argv.end(), rest.begin(), rest.end());
    return run(argv, {"CP_EMULATED_GPUS=1"});
  };
  if (with("64m", {"--version"}).exit_code != 0) GTEST_SKIP() << "a mount of one's own needs root";
  const std::vector<std::string> shared = {"--backend", "nccl", "--allow-shared-gpu", attention(folder, "}")};
  const ProgramEnd little = with("64m", shared);
  EXPECT_EQ(little.exit_code, 2) << little.out;
  EXPECT_THAT(little.err,
              AllOf(HasSubstr("NCCL needs 65.26 MiB of /dev/shm on this machine, which has 64 MiB"),
                    HasSubstr("docker run --shm-size 2g, or --ipc host")));
  EXPECT_EQ(with("66m", shared).exit_code, 0);
}

TEST_F(CprunEmulated, AWarmUpLeavesNothingInWhatIsMeasured) {
  const TemporaryFolder folder;
  std::map<std::string, std::string> shown;
  for (const char* flag : {"--hash-hosts", "--no-warm-up"}) {
    const ProgramEnd end = on_gpus(2, {"--backend", "nccl", "--verify", flag, "--trace",
                                       folder.file("nccl.cptrace"), attention(folder, "}")});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_THAT(end.out, HasSubstr("\nidentical: 2 ranks, "));
    shown[flag] = end.out.substr(0, end.out.find(" in "));
  }
  EXPECT_EQ(shown["--hash-hosts"], shown["--no-warm-up"]);  // steps and collectives
}

TEST_F(CprunEmulated, SaysWhatRanksLack) {
  const TemporaryFolder folder;
  const std::string path = ring(folder);
  const auto expect_refused = [&](int gpus, const std::string& message) {
    const ProgramEnd end = on_gpus(gpus, {"--backend", "nccl", path});
    EXPECT_EQ(end.exit_code, 2) << end.err;
    EXPECT_THAT(end.err, HasSubstr(message));
    EXPECT_THAT(end.out, IsEmpty());
    // What all ranks find, one of them says.
    if (gpus < 2) {
      EXPECT_EQ(std::ranges::count(end.err, '\n'), 2) << end.err;  // the rank's, and the launcher's
    }
  };
  expect_refused(0, "--backend nccl needs a GPU: ");
  expect_refused(1, "ranks 0, 1, 2, 3 on host ");
  expect_refused(1,
                 "share the GPU Emulated GPU (sm_90) at 0000:01:00, but NCCL wants one for each rank; use "
                 "--nproc-per-node 1, or --allow-shared-gpu");
  expect_refused(2,
                 " of this machine, counted from 0, has no GPU: there are 2; use --nproc-per-node 2, or "
                 "--allow-shared-gpu");
}

// What NCCL finds in the environment of the ranks, and that a user's own choice stays.
class NcclEnvironment : public CprunEmulated {
 protected:
  static std::string shown(const char* variables, std::vector<std::string> flags,
                           const std::vector<std::string>& environment = {}) {
    flags.insert(flags.begin(), {"--rdzv-id", "job"});
    flags.insert(flags.end(), {"--", "/bin/sh", "-c", str("echo ", variables)});
    return run(command(flags), environment).out;
  }
};

TEST_F(NcclEnvironment, SharingAGpuIsAskedOfNcclAsItsVersionsWantIt) {
  const char* variables =
      "$NCCL_HOSTID $NCCL_MULTI_RANK_GPU_ENABLE $NCCL_SOCKET_IFNAME $NCCL_NET "
      "$NCCL_MNNVL_ENABLE $CPRUN_BACKEND";
  const std::vector<std::string> flags = {"--backend", "nccl", "--allow-shared-gpu"};
  EXPECT_EQ(shown(variables, flags), "[rank 0] job-0 1 lo Socket 0 nccl\n");
  EXPECT_EQ(shown(variables, flags, {"NCCL_SOCKET_IFNAME=eth7", "NCCL_NET=IB", "NCCL_MNNVL_ENABLE=1"}),
            "[rank 0] job-0 1 eth7 IB 1 nccl\n");
  EXPECT_EQ(shown(variables, {"--backend", "nccl"}), "[rank 0] nccl\n");
}

TEST_F(NcclEnvironment, WorkOfCommunicatorsStartsInTheOrderOfTheCalls) {
  const char* variable = "$NCCL_LAUNCH_ORDER_IMPLICIT.";
  EXPECT_EQ(shown(variable, {"--backend", "nccl"}), "[rank 0] 1.\n");
  EXPECT_EQ(shown(variable, {"--backend", "nccl"}, {"NCCL_LAUNCH_ORDER_IMPLICIT=0"}), "[rank 0] 0.\n");
  EXPECT_EQ(shown(variable, {"--backend", "gloo"}), "[rank 0] .\n");
}

TEST_F(NcclEnvironment, EachStreamHasAQueueOfTheGpu) {
  const char* variable = "$CUDA_DEVICE_MAX_CONNECTIONS.";
  EXPECT_EQ(shown(variable, {"--backend", "nccl"}), "[rank 0] 32.\n");
  EXPECT_EQ(shown(variable, {"--backend", "nccl"}, {"CUDA_DEVICE_MAX_CONNECTIONS=1"}), "[rank 0] 1.\n");
}

// "=" asks NCCL for the interface of just that name.
TEST_F(NcclEnvironment, TheInterfaceIsNcclsToo) {
  const char* variable = "$NCCL_SOCKET_IFNAME.";
  for (const char* interface : {"lo", "127.0.0.1", "127.0.0.9"}) {
    const std::vector<std::string> flags = {"--backend", "nccl", "--interface", interface};
    EXPECT_EQ(shown(variable, flags), "[rank 0] =lo.\n") << interface;
    EXPECT_EQ(shown(variable, flags, {"NCCL_SOCKET_IFNAME=eth7"}), "[rank 0] eth7.\n");
  }
  EXPECT_EQ(shown(variable, {"--backend", "nccl"}), "[rank 0] .\n");
  EXPECT_EQ(shown(variable, {"--backend", "gloo", "--interface", "lo"}), "[rank 0] .\n");
}

// Of the token: another for each job that makes its own.
TEST_F(NcclEnvironment, DataSocketsAskForANumberOfTheJobs) {
  const char* variable = "$NCCL_SOCKET_MAGIC.";
  const std::string one = shown(variable, {"--backend", "nccl"});
  EXPECT_THAT(one, ::testing::MatchesRegex("\\[rank 0\\] 0x[0-9a-f]{16}\\.\n"));
  EXPECT_NE(one, shown(variable, {"--backend", "nccl"}));
  EXPECT_EQ(shown(variable, {"--backend", "nccl"}, {"NCCL_SOCKET_MAGIC=0x7"}), "[rank 0] 0x7.\n");
  EXPECT_EQ(shown(variable, {"--backend", "gloo"}), "[rank 0] .\n");
}

pid_t pid_of_rank(const Program& program, int rank) {
  for (const pid_t pid : program.processes()) {
    std::ifstream file(str("/proc/", pid, "/environ"), std::ios::binary);
    const std::string environment{std::istreambuf_iterator<char>(file), {}};
    if (environment.find(str('\0', "RANK=", rank, '\0')) != std::string::npos ||
        environment.starts_with(str("RANK=", rank, '\0')))
      return pid;
  }
  return 0;
}

TEST_F(CprunEmulated, AKilledRankIsNamed) {
  const TemporaryFolder folder;
  const std::string path = scenario(folder, R"(run { mesh: "cp=2" strategy: "ring" seq_len: 40000 q_heads: 4)"
                                            R"( kv_heads: 4 head_dim: 64 causal: true })");
  Program program(command({"--backend", "nccl", "--timeout", "5", "--grace", "1", path}),
                  {"CP_EMULATED_GPUS=2"});
  ASSERT_TRUE(within(std::chrono::seconds(20), [&] { return pid_of_rank(program, 1) != 0; }));
  sleep_for(std::chrono::seconds(1));
  ASSERT_EQ(kill(pid_of_rank(program, 1), SIGKILL), 0);
  const ProgramEnd end = program.finish(std::chrono::seconds(30));
  EXPECT_EQ(end.exit_code, 128 + SIGKILL) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("cprun: rank 1 on host "), HasSubstr("was killed by SIGKILL")));
  EXPECT_THAT(program.processes(), IsEmpty());
}

TEST_F(CprunEmulated, AProfileIsAClusterThatCpsimReads) {
  const TemporaryFolder folder;
  const std::string out = folder.file("mine.txtpb");
  const ProgramEnd end = on_gpus(
      2, {"profile", "--grid", "tiny", "--nproc-per-node", "2", "--cluster", "dgx-h100", "--output", out});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("wrote " + out));
  EXPECT_TRUE(std::filesystem::exists(folder.file("mine.csv")));
  const cli::Finished estimate = cli::cpsim(
      {"estimate", "--cluster", out, "--collective", "all_gather", "--bytes", "4KiB", "--gpus", "2"});
  EXPECT_EQ(estimate.exit_code, 0) << estimate.err;
}

// The ranks' last devices have communicators of other channels than those that the clocks are read beside.
TEST_F(CprunEmulated, AProfileHasTheClocksOfTheFirstRankAlone) {
  const TemporaryFolder folder;
  const std::string out = folder.file("mine.txtpb");
  for (const char* without : {"0", "1"}) {
    const ProgramEnd end = run(command({"profile", "--grid", "tiny", "--clock-seconds", "0.1",
                                        "--nproc-per-node", "2", "--cluster", "dgx-h100", "--output", out}),
                               {"CP_EMULATED_GPUS=2", "LD_LIBRARY_PATH=" + built("../fake_nvml"),
                                str("FAKE_NVML_WITHOUT=", without)});
    ASSERT_EQ(end.exit_code, 0) << without << end.err;
    std::ifstream file(out);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(text,
                HasSubstr(*without == '0' ? "clocks unknown: NVML was not found" : "SM clock 1234 MHz"));
  }
}

// Its kernels are rank 0's, and its collectives are in the table alone.
TEST_F(CprunEmulated, AProfileOfASharedGpuHasItsKernels) {
  const TemporaryFolder folder;
  const std::string out = folder.file("mine.txtpb");
  const ProgramEnd end = on_gpus(1, {"profile", "--grid", "tiny", "--nproc-per-node", "2",
                                     "--allow-shared-gpu", "--cluster", "dgx-h100", "--output", out});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("ranks share a GPU, so that their collectives are only in the .csv"),
                             HasSubstr("(6 curves)"), HasSubstr("(28 points)"),
                             HasSubstr("mine.software.txtpb (collective_issue_us, kernel_issue_us, "
                                       "merge_passes, pack_passes, transfer_issue_us)")));
}

TEST_F(CprunEmulated, AProfileOfUnknownGpusAsksForACluster) {
  const TemporaryFolder folder;
  const ProgramEnd end = on_gpus(1, {"profile", "--grid", "tiny", "--output", folder.file("mine.txtpb")});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.err, HasSubstr("no preset has the GPU Emulated GPU (sm_90); choose "));
}

}  // namespace
}  // namespace cp::testing
