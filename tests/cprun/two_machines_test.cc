// A job on two machines of two ranks each: that it works, and what each machine says when the other, or the
// link, fails.
#include "tests/cprun/two_machines.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"

namespace cp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = 2s, kGrace = 1s;
constexpr auto kSlack = 20s;  // ten times the promise, for a machine as much slower

class TwoMachinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!machines_.missing().empty()) GTEST_SKIP() << machines_.missing();
    std::ofstream(folder_.file("token0")) << std::string(64, 'a') << '\n';
    std::ofstream(folder_.file("token1")) << std::string(64, 'b') << '\n';
    for (const char* token : {"token0", "token1"})
      std::filesystem::permissions(folder_.file(token), std::filesystem::perms::owner_read);
  }

  std::string file(const std::string& name) const { return folder_.file(name); }

  // cprun on the machine, with what follows the flags that are the same on both.
  void start(int machine, const std::vector<std::string>& rest, const std::string& token = "token0",
             const std::vector<std::string>& environment = {}) {
    std::vector<std::string> argv = {built("cprun"),
                                     "--nnodes",
                                     "2",
                                     "--node-rank",
                                     str(machine),
                                     "--nproc-per-node",
                                     "2",
                                     "--rdzv-endpoint",
                                     str(TwoMachines::kAddress, ":29500"),
                                     "--token-file",
                                     file(token),
                                     "--timeout",
                                     str(kTimeout.count()),
                                     "--grace",
                                     str(kGrace.count())};
    argv.insert(argv.end(), rest.begin(), rest.end());
    programs_[static_cast<std::size_t>(machine)] = machines_.start(machine, argv, environment);
  }
  void start_faulty(const std::string& fault, const std::string& who) {
    for (const int machine : {0, 1}) {
      start(machine, {"--", built("faulty_rank")}, "token0",
            {"FAULT=" + fault, "AT=between_steps", "WHO=" + who, "STEPS=100000", "NOTE=" + file("note")});
    }
  }
  std::string only_file_in(const std::string& folder) const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(file(folder))) paths.push_back(entry.path());
    EXPECT_EQ(paths.size(), 1U);
    return paths.empty() ? "" : paths.front();
  }
  void wait_for_note() const {
    EXPECT_TRUE(within(20s, [&] {
      std::ifstream note(file("note"));
      std::string line;
      return std::getline(note, line) && !note.eof();
    }));
  }
  void expect_end(int machine, int exit_code, const std::string& says, const std::string& also = "") {
    Program& program = *programs_[static_cast<std::size_t>(machine)];
    const ProgramEnd end = program.finish(30s);
    EXPECT_EQ(end.exit_code, exit_code) << end.out << end.err;
    EXPECT_THAT(end.err, AllOf(HasSubstr(says), HasSubstr(also)));
    EXPECT_TRUE(within(kSlack, [&] { return program.processes().empty(); }));
  }

  TwoMachines machines_;
  cli::TemporaryFolder folder_;
  std::array<std::unique_ptr<Program>, 2> programs_;
};

TEST_F(TwoMachinesTest, WorkAsOne) {
  std::ofstream(file("ring.txtpb")) << R"(run { mesh: "cp=4" strategy: "ring" seq_len: 96 q_heads: 4 )"
                                    << R"(head_dim: 16 causal: true backward: true })";
  for (const int machine : {0, 1}) {
    std::filesystem::create_directory(file(str(machine)));  // as each machine has its own disk
    start(machine, {"--trace", file(str(machine, "/run.cptrace")), file("ring.txtpb")});
  }
  expect_end(0, 0, "");
  expect_end(1, 0, "");
  const cli::Finished merged =
      cli::cpsim({"trace", "merge", only_file_in("0"), only_file_in("1"), "-o", file("gloo.cptrace")});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  ASSERT_EQ(
      cli::cpsim({"run", "--scenario", file("ring.txtpb"), "--trace", file("fabric.cptrace")}).exit_code, 0);
  const cli::Finished compared =
      cli::cpsim({"trace", "compare", file("fabric.cptrace"), file("gloo.cptrace")});
  EXPECT_THAT(compared.out, StartsWith("identical: 4 ranks, ")) << compared.err;
}

TEST_F(TwoMachinesTest, ACutLinkIsALostMachine) {
  start_faulty("announce", "3");
  wait_for_note();
  const Clock::time_point cut = Clock::now();
  machines_.cut_link();
  expect_end(0, 13, "no heartbeat for 2 s: host machine-1 with ranks 2, 3 is down or cut off");
  EXPECT_LT(Clock::now() - cut, kTimeout + kGrace + kSlack);
  expect_end(1, 13, "the rendezvous at 10.213.0.1:29500 has not answered for 2 s");
  EXPECT_LT(Clock::now() - cut, kTimeout + kGrace + kSlack);
}

// One rank stops before it connects, so that the others are about it when the link goes.
TEST_F(TwoMachinesTest, ACutLinkWhileTheyConnectIsALostMachine) {
  for (const int machine : {0, 1}) {
    start(machine, {"--", built("faulty_rank")}, "token0",
          {"FAULT=stop", "AT=connecting", "WHO=0", "NOTE=" + file("note")});
  }
  wait_for_note();
  sleep_for(200ms);
  const Clock::time_point cut = Clock::now();
  machines_.cut_link();
  expect_end(0, 13, "cprun: rank 0 on host machine-0");
  expect_end(1, 13, "the rendezvous at 10.213.0.1:29500 has not answered for 2 s");
  EXPECT_LT(Clock::now() - cut, kTimeout + kGrace + kSlack);
}

TEST_F(TwoMachinesTest, ARankThatIsKilledIsNamedOnBoth) {
  start_faulty("kill", "3");
  // Its own launcher knows where it was, and tells the other.
  const std::string how = " was killed by SIGKILL after all_reduce #1 of cp[0,1,2,3], step 0, had ended";
  expect_end(1, 128 + SIGKILL, "cprun: rank 3 on host machine-1 (pid ", how);
  expect_end(0, 13, "cprun: rank 3 (host machine-1, pid ", how);
}

TEST_F(TwoMachinesTest, ALauncherThatIsKilledEndsTheJob) {
  start_faulty("kill", "launcher");  // of machine 0
  expect_end(1, 13, "the rendezvous at 10.213.0.1:29500 is gone");
  expect_end(0, 128 + SIGKILL, "");
}

TEST_F(TwoMachinesTest, AnotherTokenIsRefused) {
  start(0, {"--", built("faulty_rank")});
  start(1, {"--", built("faulty_rank")}, "token1");
  expect_end(1, 15, "wrong token for job 'cprun'");
  expect_end(0, 14, "ranks 2, 3 of 4 have not joined within 2 s of the first");
}

}  // namespace
}  // namespace cp::testing
