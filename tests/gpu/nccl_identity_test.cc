// Generated scenarios on the NCCL device and on the simulated fabric leave identical traces, issued, observed and digests, and every
// rank's results are one device's.
#include <algorithm>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "cli/rank_job.h"
#include "cli/trace_compare_report.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/identity/scenario_generator.h"
#include "traces/compare.h"
#include "traces/scenario.h"

namespace cp {
namespace {

using runtime::NcclDevice;

// On each number of ranks. Of these seeds come other scenarios than the Gloo device's tests have.
constexpr std::uint64_t kFirstSeed = 100;
constexpr int kRedistributions = 16, kAttentions = 26;

struct IdentityCase {
  std::string name;
  proto::Scenario scenario;
  const Target& target;
  std::map<Rank, RankTrace> simulated;  // of the ranks that have a part
};

IdentityCase make_case(const std::string& name, const proto::Scenario& scenario, const Target& target) {
  IdentityCase made{name, scenario, target, {}};
  for (RankTrace& trace : cli::simulate(scenario, target)) {
    const Rank rank = trace.rank;
    made.simulated[rank] = std::move(trace);
  }
  return made;
}

std::vector<IdentityCase> cases_for(int ranks) {
  std::vector<IdentityCase> cases;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kRedistributions; ++seed) {
    cases.push_back(make_case(str("nccl_redistribute_", ranks, "_", seed),
                              testing::redistribute_scenario(seed, ranks), host_target()));
  }
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kAttentions; ++seed) {
    cases.push_back(make_case(str("nccl_attention_", ranks, "_", seed),
                              testing::attention_scenario(seed, ranks), host_target()));
  }
  return cases;
}

// Of dtypes and dims that fused attention takes.
std::vector<IdentityCase> fused_cases_for(int ranks, const Target& target) {
  std::vector<IdentityCase> cases;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kAttentions; ++seed) {
    proto::Scenario scenario = testing::attention_scenario(seed, ranks);
    proto::Attention& job = *scenario.mutable_run();
    job.set_head_dim(16), job.set_v_head_dim(16);
    if (job.dtype() == proto::f32) job.set_dtype(seed % 2 == 0 ? proto::bf16 : proto::f16);
    cases.push_back(make_case(str("nccl_fused_", ranks, "_", seed), scenario, target));
  }
  return cases;
}

// The job's buffers are on the host: they go up before each pass, and come back after it.
void run_pass(const Plan& plan, const Bindings& bindings, NcclDevice& device, RankTrace& trace) {
  device.prepare(plan, {});
  for (const Binding& binding : bindings) {
    device.upload(binding.buffer, {static_cast<const std::byte*>(binding.data),
                                   static_cast<std::size_t>(binding.size_bytes)});
  }
  enqueue_steps(plan, device, &trace);
  device.synchronize();
  for (const Binding& binding : bindings) {
    device.download(binding.buffer,
                    {static_cast<std::byte*>(binding.data), static_cast<std::size_t>(binding.size_bytes)});
  }
}

RankTrace run_passes(cli::RankJob& job, NcclDevice& device) {
  RankTrace all;
  all.rank = device.rank();
  for (std::size_t pass = 0; pass < job.passes().size(); ++pass) {
    RankTrace trace;
    run_pass(job.passes()[pass], job.bind(pass), device, trace);
    all.issued.insert(all.issued.end(), trace.issued.begin(), trace.issued.end());
    for (OpRecord& record : device.take_observed()) all.observed.push_back(std::move(record));
    all.digests.merge(job.digests(pass));
  }
  return all;
}

// What differs, in words.
std::string run_case(const IdentityCase& identity_case, NcclDevice& device) {
  const auto job = cli::make_rank_job(identity_case.scenario, device.rank(), identity_case.target);
  const auto simulated = identity_case.simulated.find(device.rank());
  if (job->passes().empty() != (simulated == identity_case.simulated.end()))
    return "a rank has a part in one world alone";
  const RankTrace trace = run_passes(*job, device);
  std::vector<std::string> findings = job->findings();
  if (!job->passes().empty()) {
    const TraceComparison comparison = compare_traces({simulated->second}, {trace});
    if (!comparison.identical)
      findings.push_back(cli::compare_text({"the simulated fabric", "nccl", {}, {}, comparison}));
  }
  return join(findings, "\n");
}

// With the scenario, left as a file, and the command that runs it again.
std::string explain(const IdentityCase& identity_case, int ranks, const std::string& finding) {
  const std::string path = str(::testing::TempDir(), identity_case.name, ".txtpb"),
                    text = write_scenario_text(identity_case.scenario);
  std::ofstream(path) << text;
  return str("\n", finding, "\n", text, "again: cprun --backend nccl --allow-shared-gpu --nproc-per-node ",
             ranks, " --verify ", path, "\n");
}

void expect_identity(int ranks, const std::vector<IdentityCase>& cases) {
  const testing::GpuJob job(ranks);
  const auto said = testing::run_gpu_ranks(ranks, [&](Rank rank) {
    NcclDevice device(job.options(rank));
    std::string wrong;
    for (const IdentityCase& identity_case : cases) {
      try {
        const std::string finding = run_case(identity_case, device);
        if (!finding.empty()) wrong += explain(identity_case, ranks, finding);
      } catch (const std::exception& error) {  // of no further use to the other ranks
        return wrong + explain(identity_case, ranks, error.what());
      }
    }
    return wrong;
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
  expect_identity(GetParam(), cases_for(GetParam()));
}

TEST_P(NcclIdentity, SoDoThoseWithFusedAttention) {
  CP_REQUIRE_GPU();
  const std::vector<IdentityCase> cases = fused_cases_for(GetParam(), testing::target_of_the_gpus());
  const auto has_fused_steps = [](const IdentityCase& identity_case) {
    const auto job = cli::make_rank_job(identity_case.scenario, 0, identity_case.target);
    return std::ranges::any_of(job->passes(), [](const Plan& plan) { return has_fused(plan); });
  };
  EXPECT_GE(std::ranges::count_if(cases, has_fused_steps), kAttentions / 4);
  expect_identity(GetParam(), cases);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclIdentity, ::testing::Values(1, 2, 3, 4, 6, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cp
