// Generated scenarios on the NCCL device and on the simulated fabric leave identical traces, issued, observed and digests, and every
// rank's results are one device's.
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
  std::map<Rank, RankTrace> simulated;  // of the ranks that have a part
};

std::vector<IdentityCase> cases_for(int ranks) {
  std::vector<IdentityCase> cases;
  const auto add = [&](const std::string& kind, std::uint64_t seed, const proto::Scenario& scenario) {
    IdentityCase& made = cases.emplace_back(str("nccl_", kind, "_", ranks, "_", seed), scenario);
    for (RankTrace& trace : cli::simulate(scenario)) {
      const Rank rank = trace.rank;
      made.simulated[rank] = std::move(trace);
    }
  };
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kRedistributions; ++seed)
    add("redistribute", seed, testing::redistribute_scenario(seed, ranks));
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kAttentions; ++seed)
    add("attention", seed, testing::attention_scenario(seed, ranks));
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
  const auto job = cli::make_rank_job(identity_case.scenario, device.rank());
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

class NcclIdentity : public ::testing::TestWithParam<int> {};

TEST_P(NcclIdentity, GeneratedScenariosLeaveTheTracesOfTheSimulatedFabric) {
  CP_REQUIRE_GPU();
  const int ranks = GetParam();
  const testing::GpuJob job(ranks);
  const std::vector<IdentityCase> cases = cases_for(ranks);
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

INSTANTIATE_TEST_SUITE_P(Ranks, NcclIdentity, ::testing::Values(1, 2, 3, 4, 6, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cp
