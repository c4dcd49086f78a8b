// The two worlds do the same: generated scenarios on real processes over Gloo and on the simulated fabric leave identical traces,
// issued, observed and digests, and every rank's results are one device's.
#include <gtest/gtest.h>

#ifdef CP_HAVE_GLOO
#include <fstream>
#include <map>
#include <set>

#include "cli/rank_job.h"
#include "cli/trace_compare_report.h"
#include "runtime/gloo/gloo_device.h"
#include "shared/base/error.h"
#include "shared/context_parallel/strategy.h"
#include "shared/plan/execute.h"
#include "tests/identity/scenario_generator.h"
#include "tests/runtime/processes.h"
#include "traces/scenario.h"
#endif

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(Identity, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

// On each number of processes; 26 x 8 scenarios in all.
constexpr int kRedistributions = 10, kAttentions = 16;

struct IdentityCase {
  std::string name;
  proto::Scenario scenario;
  std::map<Rank, RankTrace> simulated;  // of the ranks that have a part
};

IdentityCase make_case(const std::string& name, const proto::Scenario& scenario) {
  IdentityCase result{name, scenario, {}};
  for (RankTrace& trace : cli::simulate(scenario)) {
    const Rank rank = trace.rank;
    result.simulated[rank] = std::move(trace);
  }
  return result;
}

std::vector<IdentityCase> cases_for(int ranks) {
  std::vector<IdentityCase> cases;
  for (std::uint64_t seed = 0; seed < kRedistributions; ++seed)
    cases.push_back(
        make_case(str("redistribute_", ranks, "_", seed), testing::redistribute_scenario(seed, ranks)));
  for (std::uint64_t seed = 0; seed < kAttentions; ++seed)
    cases.push_back(make_case(str("attention_", ranks, "_", seed), testing::attention_scenario(seed, ranks)));
  return cases;
}

RankTrace run_passes(cli::RankJob& job, runtime::GlooDevice& device) {
  RankTrace all;
  all.rank = device.rank();
  for (std::size_t pass = 0; pass < job.passes().size(); ++pass) {
    RankTrace trace;
    execute(job.passes()[pass], device, job.bind(pass), &trace);
    all.issued.insert(all.issued.end(), trace.issued.begin(), trace.issued.end());
    for (OpRecord& record : device.take_observed()) all.observed.push_back(std::move(record));
    all.digests.merge(job.digests(pass));
  }
  return all;
}

// What differs, in words.
std::string run_case(const IdentityCase& identity_case, runtime::GlooDevice& device) {
  const auto job = cli::make_rank_job(identity_case.scenario, device.rank());
  const auto simulated = identity_case.simulated.find(device.rank());
  if (job->passes().empty() != (simulated == identity_case.simulated.end()))
    return "a rank has a part in one world alone";
  const RankTrace trace = run_passes(*job, device);
  std::vector<std::string> findings = job->findings();
  if (!job->passes().empty()) {
    const TraceComparison comparison = compare_traces({simulated->second}, {trace});
    if (!comparison.identical)
      findings.push_back(cli::compare_text({"the simulated fabric", "gloo", {}, {}, comparison}));
  }
  return join(findings, "\n");
}

// With the scenario, left as a file, and the command that runs it again.
std::string explain(const IdentityCase& identity_case, int ranks, const std::string& finding) {
  const std::string path = str(::testing::TempDir(), identity_case.name, ".txtpb"),
                    text = write_scenario_text(identity_case.scenario);
  std::ofstream(path) << text;
  return str("\n", finding, "\n", text, "again: cprun --nproc-per-node ", ranks, " --verify ", path, "\n");
}

class Identity : public ::testing::TestWithParam<int> {};

TEST_P(Identity, GeneratedScenariosLeaveTheTracesOfTheSimulatedFabric) {
  const int ranks = GetParam();
  const std::vector<IdentityCase> cases = cases_for(ranks);
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(ranks, [&](Rank rank) {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
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

INSTANTIATE_TEST_SUITE_P(Processes, Identity, ::testing::Range(1, 9), ::testing::PrintToStringParamName());

// What the seeds happen to draw: every strategy, and every kind of mask, forward and backward.
TEST(IdentityScenarios, HoldEveryKindOfAttention) {
  std::set<std::string> strategies;
  std::map<std::string, int> kinds;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (std::uint64_t seed = 0; seed < kAttentions; ++seed) {
      const proto::Attention job = testing::attention_scenario(seed, ranks).run();
      strategies.insert(job.strategy());
      kinds["backward"] += job.backward(), kinds["forward alone"] += !job.backward();
      kinds["window"] += job.has_window(), kinds["documents"] += !job.documents().empty();
      kinds["grouped heads"] += job.q_heads() > job.kv_heads();
      kinds["uneven"] += job.seq_len() % ranks != 0;
    }
  }
  EXPECT_EQ(strategies, std::set<std::string>(strategy_names().begin(), strategy_names().end()));
  for (const auto& [kind, count] : kinds) EXPECT_GE(count, 10) << kind;
}

#endif

}  // namespace
}  // namespace cp
