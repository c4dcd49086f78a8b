// A second witness: what NCCL itself says that it was called with, on each communicator and by each rank, is
// what the ranks' traces observed.
#include "tests/gpu/nccl_witness.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "shared/plan/session.h"
#include "sim/scenario/rank_job.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/identity/scenario_generator.h"
#include "tests/runtime/processes.h"
#include "tests/support/hand_plans.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using testing::CommunicatorCalls;
using testing::WitnessedCalls;

std::string witness_library() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libnccl_witness.so";
}

// Runs plans on the ranks with the witness beside them. What the traces and the witness say comes in one
// folder.
std::pair<WitnessedCalls, WitnessedCalls> run_witnessed(
    int ranks, const std::function<std::vector<OpRecord>(NcclDevice&)>& body) {
  const testing::TemporaryDirectory folder;
  setenv("CP_NCCL_WITNESS", folder.path().c_str(), 1);
  setenv("NCCL_PROFILER_PLUGIN", witness_library().c_str(), 1);
  {
    const testing::GpuJob job(ranks);
    EXPECT_EQ(testing::run_gpu_ranks(ranks,
                                     [&](Rank rank) -> std::string {
                                       NcclDevice device(job.options(rank));
                                       testing::write_observed(folder.path(), rank, body(device));
                                       return "";
                                     }),
              std::vector<std::string>(static_cast<std::size_t>(ranks)));
  }
  unsetenv("CP_NCCL_WITNESS"), unsetenv("NCCL_PROFILER_PLUGIN");
  return {testing::read_observed(folder.path()), testing::read_witness(folder.path())};
}

#define CP_REQUIRE_WITNESS()                                                            \
  CP_REQUIRE_GPU();                                                                     \
  if (!std::filesystem::exists(witness_library()))                                      \
    GTEST_SKIP() << "no " << witness_library() << ", which is built with this program"; \
  int version = 0;                                                                      \
  ncclGetVersion(&version);                                                             \
  if (version < NCCL_VERSION(2, 27, 0))                                                 \
  GTEST_SKIP() << "NCCL " << version << " has no profilers of version 4, which came with 2.27"

void expect_same(const std::pair<WitnessedCalls, WitnessedCalls>& said, const char* what) {
  EXPECT_EQ(testing::difference(said.first, said.second), "") << what;
  EXPECT_GT(testing::count(said.second), 0U) << what;
  std::printf("%s: %zu communicators, %zu calls witnessed\n", what, said.second.communicators.size(),
              testing::count(said.second));
}

TEST(NcclWitness, SaysTheSameOfHandPlans) {
  CP_REQUIRE_WITNESS();
  for (const int ranks : {2, 4}) {
    const std::vector<testing::PlanCase> cases = testing::hand_plans(ranks);
    expect_same(run_witnessed(ranks,
                              [&](NcclDevice& device) {
                                std::vector<OpRecord> observed;
                                for (const testing::PlanCase& one : cases) {
                                  run_plan_case(one, device.rank(), device);
                                  for (OpRecord& record : device.take_observed())
                                    observed.push_back(std::move(record));
                                }
                                return observed;
                              }),
                "hand plans");
  }
}

TEST(NcclWitness, SaysTheSameOfGeneratedScenarios) {
  CP_REQUIRE_WITNESS();
  constexpr int kWitnessed = 4;
  constexpr std::uint64_t kScenarios = 12;
  std::vector<proto::Scenario> scenarios;
  for (std::uint64_t seed = 300; seed < 300 + kScenarios; ++seed) {
    scenarios.push_back(testing::redistribute_scenario(seed, kWitnessed));
    scenarios.push_back(testing::attention_scenario(seed, kWitnessed));
  }
  const auto run = [&](NcclDevice& device) {
    std::vector<OpRecord> observed;
    for (const proto::Scenario& scenario : scenarios) {
      const auto job = sim::make_rank_job(scenario, device.rank());
      for (std::size_t pass = 0; pass < job->plans().size(); ++pass) {
        run_on_host_buffers(device, job->plans()[pass], {job->bind(pass), device.host_memory()});
        for (OpRecord& record : device.take_observed()) observed.push_back(std::move(record));
      }
    }
    return observed;
  };
  expect_same(run_witnessed(kWitnessed, run), "scenarios");
}

// What it is for: it must not agree with whatever is said.
TEST(NcclWitness, NamesWhatDiffers) {
  CommunicatorCalls both;
  both[0].collectives = {"AllReduce of 64 bytes, f32", "AllGather of 8 bytes"};
  both[1].collectives = both[0].collectives;
  both[0].transfers[{"Send", 1}] = {16, 32};
  both[1].transfers[{"Recv", 0}] = {16, 32};
  const WitnessedCalls observed{{{"cp[0,1]", both}, {"dp[0,1]", {{0, {{"AllReduce of 4 bytes, f32"}, {}}}}}}};
  WitnessedCalls witnessed{{{"17", {{0, {{"AllReduce of 4 bytes, f32"}, {}}}}}, {"18", both}}};
  EXPECT_EQ(testing::difference(observed, witnessed), "");

  CommunicatorCalls& calls = witnessed.communicators["18"];
  calls[1].transfers[{"Recv", 0}] = {16, 20, 12};  // of one record
  EXPECT_EQ(testing::difference(observed, witnessed), "");
  calls[1].transfers[{"Recv", 0}] = {20, 28};
  EXPECT_THAT(testing::difference(observed, witnessed), ::testing::HasSubstr("member 1: Recv with peer 0"));
  calls = both;
  calls[0].collectives[0] = "AllReduce of 64 bytes, i32";
  EXPECT_THAT(testing::difference(observed, witnessed), ::testing::HasSubstr("AllReduce of 64 bytes, i32"));
  calls = both;
  calls[1].collectives.pop_back();
  EXPECT_THAT(testing::difference(observed, witnessed), ::testing::HasSubstr("witnessed as nothing"));
  calls = both;
  calls[0].transfers[{"Send", 1}].push_back(1);
  EXPECT_THAT(testing::difference(observed, witnessed), ::testing::HasSubstr("Send with peer 1"));
  calls = both;
  // Another communicator of the same ranks took one of the calls.
  calls[0].collectives.pop_back(), calls[1].collectives.pop_back();
  witnessed.communicators["17"][0].collectives.emplace_back("AllGather of 8 bytes");
  EXPECT_THAT(
      testing::difference(observed, witnessed),
      ::testing::AllOf(::testing::HasSubstr("calls of cp[0,1]"), ::testing::HasSubstr("calls of dp[0,1]")));
  witnessed.communicators["19"] = both;
  EXPECT_THAT(testing::difference(observed, witnessed), ::testing::HasSubstr("were not observed"));
}

}  // namespace
}  // namespace cp
