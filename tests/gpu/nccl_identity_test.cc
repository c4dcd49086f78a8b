// Generated scenarios on the NCCL device and on the simulated fabric leave identical traces, issued, observed
// and digests, and every rank's results are one device's.
#include <algorithm>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/text.h"
#include "sim/scenario/rank_job.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/identity/identity_case.h"
#include "tests/identity/scenario_generator.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using testing::IdentityCase;

// On each number of ranks. Of these seeds come other scenarios than the Gloo device's tests have.
constexpr std::uint64_t kFirstSeed = 100;
#ifdef CP_GPU_EMULATED
constexpr int kRedistributions = 16, kAttentions = 26, kRecurrences = 10;
#else
constexpr int kRedistributions = 8, kAttentions = 12,
              kRecurrences = 8;  // eight ranks may share one GPU, in turns
#endif

// `prefix`: of the files of cases that differ. `change` makes of a scenario of attention what the test is
// about.
template <class Change>
std::vector<IdentityCase> cases_for(std::string_view prefix, int ranks, const Target& target,
                                    const Change& change) {
  std::vector<IdentityCase> cases;
  const auto add = [&](std::string_view job, std::uint64_t seed, proto::Scenario scenario) {
    cases.push_back(testing::make_identity_case(str(prefix, "_", job, "_", ranks, "_", seed),
                                                std::move(scenario), target));
  };
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kRedistributions; ++seed)
    add("redistribute", seed, testing::redistribute_scenario(seed, ranks));
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kAttentions; ++seed) {
    proto::Scenario scenario = testing::attention_scenario(seed, ranks);
    change(*scenario.mutable_run());
    add("attention", seed, std::move(scenario));
  }
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kRecurrences; ++seed)
    add("recurrence", seed, testing::recurrence_scenario(seed, ranks));
  return cases;
}

void expect_identity(int ranks, const std::vector<IdentityCase>& cases) {
  const testing::GpuJob job(ranks);
  const auto said = testing::run_gpu_ranks(ranks, [&](Rank rank) {
    NcclDevice device(job.options(rank));
    return testing::run_cases(cases, device, "cprun --backend nccl --allow-shared-gpu");
  });
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    EXPECT_TRUE(said[rank].empty()) << "rank " << rank << said[rank];
}

bool has_fused(const Plan& plan) {
  return std::ranges::any_of(steps_of(plan), [](const StepRef& ref) {
    const Kernel* kernel = std::get_if<Kernel>(&ref.step->work);
    const AttentionForward* forward = kernel == nullptr ? nullptr : std::get_if<AttentionForward>(kernel);
    return forward != nullptr && forward->engine == AttentionEngine::fused;
  });
}

class NcclIdentity : public ::testing::TestWithParam<int> {};

TEST_P(NcclIdentity, GeneratedScenariosLeaveTheTracesOfTheSimulatedFabric) {
  CP_REQUIRE_GPU();
  expect_identity(GetParam(), cases_for("nccl", GetParam(), host_target(), [](proto::Attention&) {}));
}

// Of dtypes and dims that fused attention takes.
TEST_P(NcclIdentity, SoDoThoseMadeForTheGpu) {
  CP_REQUIRE_GPU();
  const std::vector<IdentityCase> cases =
      cases_for("gpu", GetParam(), testing::target_of_the_gpus(), [](proto::Attention& job) {
        job.set_head_dim(16), job.set_v_head_dim(16);
        if (job.dtype() == proto::f32) job.set_dtype(job.seed() % 2 == 0 ? proto::bf16 : proto::f16);
      });
  const auto has_fused_steps = [](const IdentityCase& identity_case) {
    const auto job = sim::make_rank_job(identity_case.scenario, 0);
    return std::ranges::any_of(job->plans(), [](const Plan& plan) { return has_fused(plan); });
  };
  EXPECT_GE(std::ranges::count_if(cases, has_fused_steps), kAttentions / 4);
  expect_identity(GetParam(), cases);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclIdentity, ::testing::Values(1, 2, 3, 4, 6, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cp
